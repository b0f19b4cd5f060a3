"""Rotations of tokens and prompts that are kept have the bits that the model gives each alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.hf_model.test_models import load
from tools.make_random_model import make_random_model
from vllm.hf_layers.products.single_row_products import same_bits
from vllm.hf_model.rotations import _MOST_LENGTHS, Rotations

SHAPES = ["tinyllama-1.1b", "qwen2-0.5b", "qwen3-0.6b"]


def made(
    folder: Path, shape: str = SHAPES[0], dtype: str = "bfloat16"
) -> tuple[Any, torch.Tensor, Rotations]:
    """Return a model's rotary embeddings, a tensor of its dtype, and what keeps the angles."""
    make_random_model(shape, folder, num_layers=1, narrow=True)
    rotary = load(folder, dtype, "sdpa").get_decoder().rotary_emb
    return rotary, torch.zeros(1, 1, dtype=getattr(torch, dtype)), Rotations(rotary)


def alone(rotary: Any, x: torch.Tensor, positions: list[int]) -> torch.Tensor:
    """Return what Transformers rotates a request's tokens by, cosines beside sines."""
    cosines, sines = rotary(x, position_ids=torch.tensor([positions]))
    half = cosines.shape[-1] // 2
    return torch.cat([cosines[0, :, :half], sines[0, :, :half]], dim=-1)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("shape", SHAPES)
@torch.inference_mode()
def test_tokens(shape: str, dtype: str, tmp_path: Path) -> None:
    rotary, x, kept = made(tmp_path, shape, dtype)
    for positions in ([0, 5, 63], [64, 3, 1000], [1_023, 127, 5_000], [40_000]):
        rows = torch.tensor(positions)
        found = kept.of_tokens(x, positions, rows)
        assert found.rows is rows
        for position in positions:
            assert same_bits(found.table[position], alone(rotary, x, [position])[0])


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("shape", SHAPES)
@torch.inference_mode()
def test_prompts(shape: str, dtype: str, tmp_path: Path) -> None:
    """More lengths than are kept, some of them again."""
    rotary, x, kept = made(tmp_path, shape, dtype)
    for lengths in ([7, 64, 7, 500], [64, 1], [3] * 9, [*range(1, _MOST_LENGTHS + 9)], [500, 7]):
        table, rows = kept.of_prompts(x, lengths)
        expected = torch.cat([alone(rotary, x, [*range(length)]) for length in lengths])
        assert same_bits(table[rows], expected)


@torch.inference_mode()
def test_other_frequencies_count(tmp_path: Path) -> None:
    """Those that a running engine is given in place, or as another scaling."""
    rotary, x, kept = made(tmp_path)
    positions = [5, 9]

    def found() -> torch.Tensor:
        tokens = kept.of_tokens(x, positions, torch.tensor(positions))
        prompts = kept.of_prompts(x, [4])
        return torch.cat([tokens.table[tokens.rows], prompts.table[prompts.rows]])

    before = found()
    for change in (
        lambda: rotary.inv_freq.mul_(2),
        lambda: setattr(rotary, "attention_scaling", 3),
    ):
        change()
        runs = ([5], [9], [0, 1, 2, 3])
        assert same_bits(found(), torch.cat([alone(rotary, x, run) for run in runs]))
        assert not same_bits(found(), before)
