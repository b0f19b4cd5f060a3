"""Rotations of tokens that are kept have the bits that the model gives each token alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.hf_exact.test_models import load
from tools.make_random_model import make_random_model
from vllm.hf_exact.rotations import TokenRotations, rotation_of
from vllm.hf_numerics.single_row_products import same_bits


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("shape", ["tinyllama-1.1b", "qwen2-0.5b", "qwen3-0.6b"])
@torch.inference_mode()
def test_bits(shape: str, dtype: str, tmp_path: Path) -> None:
    make_random_model(shape, tmp_path, num_layers=1, narrow=True)
    rotary: Any = load(tmp_path, dtype, "sdpa").get_decoder().rotary_emb
    x = torch.zeros(1, 1, dtype=getattr(torch, dtype))
    kept = TokenRotations(rotary)
    for positions in ([0, 5, 63], [64, 3, 1000], [1_023, 127, 5_000], [40_000]):
        rows = torch.tensor(positions)
        found = kept(x, positions, rows)
        assert found.rows is rows
        for position in positions:
            alone = rotation_of(rotary, x, torch.tensor([[position]]))
            assert same_bits(found.table[position], alone.table[alone.rows[0]])


@torch.inference_mode()
def test_other_frequencies_count(tmp_path: Path) -> None:
    """Those that a running engine is given in place, or as another scaling."""
    make_random_model("tinyllama-1.1b", tmp_path, num_layers=1, narrow=True)
    rotary: Any = load(tmp_path, "bfloat16", "sdpa").get_decoder().rotary_emb
    x, rows = torch.zeros(1, 1, dtype=torch.bfloat16), torch.tensor([5, 9])
    kept = TokenRotations(rotary)
    before = kept(x, [5, 9], rows).table[rows]
    for change in (
        lambda: rotary.inv_freq.mul_(2),
        lambda: setattr(rotary, "attention_scaling", 3),
    ):
        change()
        found = kept(x, [5, 9], rows).table[rows]
        alone = torch.cat([rotation_of(rotary, x, rows[i : i + 1, None]).table for i in range(2)])
        assert same_bits(found, alone)
        assert not same_bits(found, before)
