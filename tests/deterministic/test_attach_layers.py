"""The modules that attach() puts into a model, against the operators they are made of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.deterministic.models import random_model, token_ids
from vllm.deterministic import attach
from vllm.deterministic.attached.form import Form
from vllm.deterministic.attached.linear import HeadForm, LinearForm
from vllm.deterministic.attached.norm import RMSNormForm, adopt_norm
from vllm.deterministic.attached.rotary import PortableRotaryEmbedding
from vllm.deterministic.attached.sample import sample_rows
from vllm.deterministic.attached.weights import pack_matrices
from vllm.fork_kernels.portable.functions import Function, portable_gated, portable_map
from vllm.fork_kernels.portable.product import (
    channel_statistics,
    equalising_exponents,
    pack_weight,
    portable_product,
)
from vllm.fork_kernels.portable.rotary import rotary_frequencies

pytestmark = pytest.mark.fast


@pytest.fixture(autouse=True)
def _without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def fused_product(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
    """Return the product with weights that are one matrix, as in the engine."""
    weight = torch.cat(weights)
    exponents = equalising_exponents(channel_statistics(weight))
    return portable_product(x, pack_weight(weight, exponents))


def test_queries_keys_and_values_are_those_of_one_matrix() -> None:
    stock: Any = random_model("qwen3-0.6b")
    attention = stock.model.layers[0].self_attn
    layers = (attention.q_proj, attention.k_proj, attention.v_proj)
    rows = sample_rows(256, torch.bfloat16)
    attention.k_proj.weight.data[:, ::3] *= 40.0  # or the exponents would be the same
    weights = [layer.weight.data for layer in layers]
    expected = fused_product(rows, *weights)
    alone = portable_product(rows, pack_matrices([attention.q_proj.weight.data])[0])
    attach(stock)
    names = ("q_proj", "k_proj", "v_proj")
    found = [getattr(attention, name)(rows) for name in names]
    assert torch.equal(torch.cat(found, dim=-1), expected)
    assert not torch.equal(alone, found[0])


@pytest.mark.parametrize(
    ("shape", "function"),
    [
        ("qwen2-0.5b", Function.SILU),
        ("gemma3-1b", Function.GELU_TANH),
        ("phi3-mini", Function.SILU),
    ],
)
def test_a_gated_mlp_rounds_once_between_its_products(shape: str, function: Function) -> None:
    stock: Any = random_model(shape)
    mlp = stock.model.layers[0].mlp
    names = ("gate_up_proj",) if shape == "phi3-mini" else ("gate_proj", "up_proj")
    weights = [getattr(mlp, name).weight.data for name in names]
    rows = sample_rows(weights[0].shape[1], torch.bfloat16)
    gated = portable_gated(fused_product(rows, *weights), function)
    expected = fused_product(gated, mlp.down_proj.weight.data)
    attach(stock)
    assert torch.equal(stock.model.layers[0].mlp(rows), expected)


def test_conv1d_is_a_transposed_linear_layer() -> None:
    stock: Any = random_model("gpt2")
    layer = stock.transformer.h[0].attn.c_attn
    weight, bias = layer.weight.data.t().contiguous(), layer.bias.data
    rows = sample_rows(256, torch.bfloat16)
    packed = pack_weight(weight, equalising_exponents(channel_statistics(weight)))
    attach(stock)
    found = stock.transformer.h[0].attn.c_attn(rows)
    assert torch.equal(found, portable_product(rows, packed, bias))


def test_logits_come_from_the_product_and_are_capped_in_float32() -> None:
    model: Any = random_model("gemma2-2b", final_logit_softcapping=0.7)
    table = model.get_input_embeddings().weight.data
    attach(model)
    assert model.config.final_logit_softcapping is None
    hidden = model.model(token_ids(9)).last_hidden_state
    packed = pack_weight(table, equalising_exponents(channel_statistics(table)))
    logits = portable_product(hidden[0], packed, dtype=torch.float32)
    expected = portable_map(logits / torch.full_like(logits, 0.7), Function.TANH) * 0.7
    assert torch.equal(model(token_ids(9)).logits[0], expected)
    assert isinstance(model.lm_head, HeadForm)


def test_a_mixture_returns_the_logits_of_its_routers() -> None:
    models: list[Any] = [random_model("mixtral-8x7b"), attach(random_model("mixtral-8x7b"))]
    expected, found = (
        model(token_ids(9), output_router_logits=True).router_logits for model in models
    )
    for own, of_layer in zip(found, expected, strict=True):
        assert (own - of_layer).norm() < 0.05 * of_layer.norm()


@pytest.mark.parametrize(("shape", "offset"), [("llama", 0.0), ("gemma3-1b", 1.0)])
def test_norms_are_told_apart(shape: str, offset: float) -> None:
    model: Any = random_model(shape)
    norm = model.model.norm
    adopt_norm(norm)
    assert isinstance(norm, RMSNormForm)
    assert norm.portable_offset == offset


def test_a_norm_of_another_kind_is_not_taken() -> None:
    class MeanNorm(torch.nn.Module):
        eps = 1e-6

        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x / x.abs().mean(-1, keepdim=True) * self.weight

    norm = MeanNorm()
    adopt_norm(norm)
    assert not isinstance(norm, Form)


def test_a_rotary_table_grows_without_a_change_to_its_bits() -> None:
    rotary = PortableRotaryEmbedding({None: (rotary_frequencies(16), 1.5)}, limit=None)
    first, _ = rotary(torch.zeros(1, 1, 4), torch.tensor([[5]]))
    second, _ = rotary(torch.zeros(1, 1, 4), torch.tensor([[5000]]))
    assert second.table.shape == (8192, 16)
    assert torch.equal(first.table, second.table[: len(first.table)])


def test_scores_are_capped() -> None:
    """Transformers caps scores in its plainest implementation only."""
    stock = random_model("gemma2-2b", torch.float32, attn_logit_softcapping=0.25)
    stock.set_attn_implementation("eager")
    expected = stock(token_ids(60)).logits
    errors = []
    for cap in (0.25, None):
        model = attach(random_model("gemma2-2b", attn_logit_softcapping=cap))
        errors.append(float((model(token_ids(60)).logits - expected).norm() / expected.norm()))
    assert errors[0] < 0.015 < 0.03 < errors[1]


def test_opt_scales_scores_in_the_kernel() -> None:
    """For heads of 80, a scaled query would be rounded; the engine's queries are not."""
    arguments: dict[str, Any] = {
        "hidden_size": 320,
        "num_attention_heads": 4,
        "word_embed_proj_dim": 320,
    }
    model: Any = attach(random_model("opt-125m", **arguments))
    attention = model.model.decoder.layers[0].self_attn
    assert attention.scaling == 1.0
    assert attention.portable_scaling == 80**-0.5
    assert isinstance(attention.q_proj, LinearForm)
    expected = random_model("opt-125m", torch.float32, **arguments)(token_ids(30)).logits
    difference = model(token_ids(30)).logits - expected
    assert difference.norm() < 0.02 * expected.norm()
