"""ALiBi's slopes are powers of two, rounded once, whatever a machine made of them."""

from __future__ import annotations

from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from vllm.deterministic import layers
from vllm.deterministic.positions.alibi import portable_slopes
from vllm.model_executor.models.bloom import _get_alibi_slopes


@pytest.mark.parametrize("heads", [1, 8, 12, 16, 32, 71, 112, 256])
def test_slopes_are_the_nearest(heads: int) -> None:
    """A slope m = 2^(-j / 64) has m^64 = 2^-j; those of the neighbours' midpoints enclose it."""
    theirs = _get_alibi_slopes(heads)
    ours = portable_slopes(theirs)
    assert ours is not None
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=0)
    for slope in ours.numpy():
        above, below = (
            (Fraction(float(slope)) + Fraction(float(np.nextafter(slope, np.float32(end))))) / 2
            for end in (1, 0)
        )
        j = round(-64 * np.log2(float(slope)))
        assert below**64 < Fraction(1, 2**j) < above**64


def test_what_a_machine_rounded_does_not_matter() -> None:
    slopes = _get_alibi_slopes(12)
    expected = portable_slopes(slopes)
    assert expected is not None
    for factor in (1 - 2e-6, 1 + 2e-6):
        found = portable_slopes(slopes * factor)
        assert found is not None
        assert torch.equal(found, expected)


@pytest.mark.parametrize("slope", [0.3, 0.0, -0.5, float("nan"), 0.7072])
def test_other_slopes(slope: float) -> None:
    assert portable_slopes(torch.tensor([0.5, slope])) is None


@pytest.mark.parametrize(("slopes", "is_taken"), [([0.5, 0.25], True), ([0.5, 0.3], False)])
def test_layers(slopes: list[float], is_taken: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    class Implementation(SimpleNamespace):
        """What vLLM makes of an attention layer."""

    class Layer(torch.nn.Module):
        """A layer of attention."""

    numbers = {"num_heads": 2, "num_kv_heads": 2, "head_size": 64, "scale": 0.125}
    others = {"logits_soft_cap": 0, "sinks": None}
    layer: Any = Layer()
    layer.sliding_window = None
    layer.impl = Implementation(
        **numbers, **others, kv_sharing_target_layer_name=None, alibi_slopes=torch.tensor(slopes)
    )
    layer.attn_type, layer.head_size, layer.head_size_v = "decoder", 64, 64
    monkeypatch.setattr(layers, "Attention", Layer)
    monkeypatch.setattr(layers, "_ATTENTION", (Implementation,))
    if not is_taken:
        with pytest.raises(ValueError, match=r"attn \(Layer\): slopes of ALiBi other than"):
            layers._use_portable_attention("attn", layer)
        return
    layers._use_portable_attention("attn", layer)
    given: dict[str, Any] = {}
    monkeypatch.setattr(
        "vllm.deterministic.attention.portable_attention",
        lambda query, *_, **options: given.update(options) or query,
    )
    metadata: Any = SimpleNamespace(
        num_tokens=1, block_table=None, query_start_loc=None, seq_lens=None
    )
    query = torch.ones(1, 2, 64)
    cache = torch.empty(1, 2, 16, 258, dtype=torch.uint8)
    layer.impl.forward(layer, query, query, query, cache, metadata, torch.empty_like(query))
    assert given["slopes"].tolist() == slopes
