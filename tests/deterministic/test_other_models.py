"""Architectures with layers of their own: an engine and an attached model have the same bits."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.engines import ROOT
from tests.sizes import size

TYPES = (
    "gpt_oss",  # sinks, clamped experts with biases
    "deepseek_v3",  # latent attention, groups of experts that a correction chooses
    "cohere2",  # a LayerNorm without biases, pairs of neighbours, parallel branches
    "granitemoe",  # multipliers, logits that are scaled
    "qwen2_moe",  # a shared expert with a gate
    "deepseek_v2",  # rotations of complex numbers
    "glm4_moe",
    "glm4_moe_lite",
    "glm",
    "ernie4_5_moe",
    "exaone_moe",
    "minicpm3",
    "nemotron",
    "olmo",
    "flex_olmo",
    "minimax_m2",  # norms over all heads, routers in 16 bits
    "hy_v3",
    "lfm2_moe",
    "gpt_bigcode",
)[: size(5, 19)]


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.deterministic.both_sides", *TYPES]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


@pytest.mark.parametrize("name", TYPES)
def test_an_engine_has_the_bits_of_an_attached_model(found: dict[str, Any], name: str) -> None:
    engine, attached = found[name]["deterministic"], found[name]["attached"]
    assert (engine["error"], attached["error"]) == ("", "")
    assert engine["tokens"] == attached["tokens"]
    assert engine["digests"] == attached["digests"]
    assert [len(steps) for steps in engine["digests"]] == [16] * 6


@pytest.mark.parametrize("name", TYPES)
def test_both_are_close_to_transformers(found: dict[str, Any], name: str) -> None:
    assert found[name]["error"] < 0.05
