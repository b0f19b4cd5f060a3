"""Digests of deterministic mode's bits, which every machine must have.

    python -m tests.deterministic.digests frequencies|logits|random [--write]

prints them as JSON. Those of frequencies and of logits have files, which `--write` makes anew; they
change only with the specification.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig

from tests.deterministic.models import bundled_model, random_model, token_ids
from vllm.deterministic import attach
from vllm.deterministic.positions.rope_config import frequencies_of

FILES = {
    "frequencies": Path(__file__).with_name("rope_digests.json"),
    "logits": Path(__file__).with_name("attach_digests.json"),
}

BASE = {"rope_theta": 10000.0}
LONGROPE: dict[str, Any] = {
    "rope_type": "longrope",
    "short_factor": [1 + i / 32 for i in range(64)],
    "long_factor": [1 + i * i / 64 for i in range(64)],
    "original_max_position_embeddings": 4096,
    **BASE,
}
YARN = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096}

VARIANTS: dict[str, tuple[dict[str, Any], int | None]] = {
    "default": ({"rope_type": "default", **BASE}, None),
    "partial": ({"rope_type": "default", "partial_rotary_factor": 0.375, **BASE}, None),
    "linear": ({"rope_type": "linear", "factor": 3.0, **BASE}, None),
    "dynamic": ({"rope_type": "dynamic", "factor": 3.0, **BASE}, None),
    "dynamic, trained shorter": (
        {"rope_type": "dynamic", "factor": 3.0, "max_trained_positions": 30000, **BASE},
        None,
    ),
    "llama3": (
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
            "rope_theta": 500000.0,
        },
        None,
    ),
    "yarn": ({**YARN, **BASE}, None),
    "yarn, not truncated": ({**YARN, "truncate": False, "rope_theta": 1e6}, None),
    "yarn, two scales": ({**YARN, "mscale": 0.7, "mscale_all_dim": 1.0, **BASE}, None),
    "yarn, given scale": ({**YARN, "attention_factor": 1.25, **BASE}, None),
    "longrope, long": (LONGROPE, None),
    "longrope, short": (LONGROPE, 4096),
}
"""The parameters of a configuration, and the longest sequence."""


def config_of(parameters: dict[str, Any]) -> LlamaConfig:
    """Return a configuration with heads of 128 and 131072 positions."""
    return LlamaConfig(
        hidden_size=256,
        num_attention_heads=2,
        max_position_embeddings=131072,
        rope_parameters=parameters,
    )


def frequency_digests() -> dict[str, str]:
    """Return the digest of the frequencies and the scale of each variant."""
    found = {}
    for name, (parameters, longest) in VARIANTS.items():
        frequencies, scale = frequencies_of(config_of(parameters), max_length=longest)
        found[name] = _sha256(frequencies.numpy().tobytes() + scale.hex().encode())
    return found


@torch.no_grad()
def logit_digests() -> dict[str, str]:
    """Return the digests of the logits of the bundled model."""
    found = {}
    for dtype in (torch.bfloat16, torch.float16):
        model = attach(bundled_model(dtype))
        ids = token_ids(100, vocabulary=model.config.vocab_size)
        found[str(dtype)] = _sha256(model(ids).logits.numpy().tobytes())
    return found


@torch.no_grad()
def random_digests() -> dict[str, str]:
    """Return those of random models, whose weights PyTorch draws; not the same on any machine."""
    found = {}
    for shape in ("qwen3-0.6b", "gemma2-2b", "gpt-neox", "opt-125m"):
        logits = attach(random_model(shape))(token_ids(70)).logits
        found[shape] = _sha256(logits.numpy().tobytes())
    return found


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


MAKERS = {"frequencies": frequency_digests, "logits": logit_digests, "random": random_digests}


def main() -> None:
    """Print or write the digests of one kind."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=MAKERS)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    text = json.dumps(MAKERS[arguments.kind](), indent=1) + "\n"
    if arguments.write:
        FILES[arguments.kind].write_text(text)
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
