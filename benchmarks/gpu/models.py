"""Llamas of real shapes with random weights, made on the device that will run them.

    python -m benchmarks.gpu.models 1B build/gpu/models/1B --device cuda

Shapes are those of Llama-3.2-1B and Llama-3.1-8B, from the configurations that were published with
them; "tiny" is for trying the benchmarks out on a CPU.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GenerationConfig, LlamaConfig

from tools.borrowed_tokenizer import write_tokenizer
from tools.make_random_model import randomize

_COMMON: dict[str, Any] = {
    "vocab_size": 128256,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 128000,
    "eos_token_id": 128001,
}
_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}

SHAPES: dict[str, dict[str, Any]] = {
    "1B": {
        **_COMMON,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "tie_word_embeddings": True,
        "rope_parameters": {**_ROPE, "factor": 32.0},
    },
    "8B": {
        **_COMMON,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "tie_word_embeddings": False,
        "rope_parameters": {**_ROPE, "factor": 8.0},
    },
    "tiny": {
        **_COMMON,
        "vocab_size": 4096,
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
    },
}
"""Arguments of ``LlamaConfig``."""


def linear_shapes(name: str) -> dict[str, tuple[int, int]]:
    """Return (out_features, in_features) of the matrices of a layer as vLLM has them."""
    shape = SHAPES[name]
    hidden, inner = shape["hidden_size"], shape["intermediate_size"]
    heads, kv_heads = shape["num_attention_heads"], shape["num_key_value_heads"]
    return {
        "qkv": (hidden + 2 * hidden * kv_heads // heads, hidden),
        "o": (hidden, hidden),
        "gate_up": (2 * inner, hidden),
        "down": (hidden, inner),
    }


def make_model(name: str, folder: Path, device: str) -> None:
    """Write a model in bfloat16 to `folder`, with the bundled model's tokenizer."""
    config = LlamaConfig(**SHAPES[name])
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    randomize(model, seed=0, init_scale=1.0)
    model.generation_config = GenerationConfig(
        bos_token_id=config.bos_token_id, eos_token_id=config.eos_token_id
    )
    partial = folder.with_name(f"{folder.name}.partial")  # so that a half is not taken for one
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    model.save_pretrained(partial)
    write_tokenizer(config, True, partial)
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("name", choices=SHAPES)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    make_model(options.name, options.folder, options.device)
    size = sum(path.stat().st_size for path in options.folder.iterdir())
    print(json.dumps({"gigabytes": round(size / 1e9, 2)}))


if __name__ == "__main__":
    main()
