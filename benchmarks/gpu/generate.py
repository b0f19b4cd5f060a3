"""The answers of Transformers' ``generate()`` on this machine, in a process without vLLM.

    python -m benchmarks.gpu.generate FILE [--dtype bfloat16] [--no-cudnn]

A user's ``generate()`` runs with PyTorch's own switches, of which vLLM changes some when it is
imported. Four prompts are continued by 64 tokens, one by one, greedily and sampled with a seed.
FILE gets the token ids and the logits as an .npz; with --no-cudnn they are those without cuDNN's
attention, which PyTorch tries first on compute capabilities 9.x and 10.x.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

MODEL = Path(__file__).resolve().parents[2] / "models" / "tiny-python-llama"
TOKENS = 64
SEED = 7
PROMPTS = (
    "def fibonacci(n):\n",
    "import os\nimport sys\n\ndef main(",
    "class Stack:\n    def __init__(self",
    "for line in file:\n    ",
)
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"repetition_penalty": 1.1, "max_new_tokens": TOKENS},
    "sampled": {
        "do_sample": True, "temperature": 0.9, "top_k": 0, "top_p": 0.95, "max_new_tokens": TOKENS,
    },
}  # fmt: skip
"""Fields of ``GenerationConfig``."""


def prompt_ids() -> list[list[int]]:
    """Return the token ids of the prompts."""
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    return [tokenizer(text)["input_ids"] for text in PROMPTS]


@torch.inference_mode()
def answer(model: Any, prompt: list[int], way: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the new token ids, and the logits that chose them, float32 [tokens, vocab_size]."""
    ids = torch.tensor([prompt], device=model.device)
    torch.manual_seed(SEED)
    output = model.generate(
        ids, attention_mask=torch.ones_like(ids), output_logits=True,
        return_dict_in_generate=True, **WAYS[way],
    )  # fmt: skip
    tokens = output.sequences[0, len(prompt) :].cpu().numpy()
    return tokens, torch.cat(output.logits).float().cpu().numpy()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--no-cudnn", action="store_true")
    options = parser.parse_args()
    if options.no_cudnn:
        torch.backends.cuda.enable_cudnn_sdp(False)
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=getattr(torch, options.dtype))
    model.to(options.device).eval()
    kept: dict[str, Any] = {}
    for way in WAYS:
        for number, prompt in enumerate(prompt_ids()):
            tokens, logits = answer(model, prompt, way)
            kept |= {f"{way} {number} tokens": tokens, f"{way} {number} logits": logits}
    np.savez(options.file, **kept)
    print(json.dumps({"answers": len(kept) // 2, "cudnn": not options.no_cudnn}))


if __name__ == "__main__":
    main()
