"""Writes, as JSON, what an engine and an attached model answer for types of models.

    python -m tests.deterministic.both_sides TYPE ...

For each type: the answers of both (`benchmarks.architectures.sides`), and the relative error of the
attached model's logits, the median over tokens, measured against Transformers in float32. (A token
whose experts are nearly as good as others may have others in 16 bits.)
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
os.environ["OMP_NUM_THREADS"] = "1"

import torch
from transformers import AutoModelForCausalLM

# What every case needs is imported before a process is forked for it.
import vllm.v1.engine.llm_engine
import vllm.v1.worker.cpu_worker  # noqa: F401
from benchmarks.architectures.cases import MAX_LENGTH, Case
from benchmarks.architectures.sides import plain_side
from tools.definitions.bases import base_of
from tools.definitions.children import answers
from vllm.deterministic import attach

LIMIT_S = 240.0


def both(name: str) -> dict[str, Any]:
    """Return what is found of a type."""
    case = Case(base_of(name))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        case.write(path)
        sides = {side: plain_side(case, path, side, "bfloat16") for side in _SIDES}
        return {**sides, "error": _error(path, case)}


_SIDES = ("deterministic", "attached")


@torch.no_grad()
def _error(folder: Path, case: Case) -> float:
    load = AutoModelForCausalLM.from_pretrained
    attached = attach(load(folder, dtype=torch.bfloat16).eval(), max_length=MAX_LENGTH)
    exact = load(folder, dtype=torch.float32).eval()
    ids = torch.tensor([case.prompts()[-1]])
    found, right = attached(ids).logits, exact(ids).logits
    return float(((found - right).norm(dim=-1) / right.norm(dim=-1)).median())


if __name__ == "__main__":
    jobs = [(name, lambda name=name: both(name)) for name in sys.argv[1:]]
    found = {
        name: answer.value or {"failed": answer.error} for name, answer in answers(jobs, 1, LIMIT_S)
    }
    print(json.dumps(found))
