"""Mixtures of experts of vLLM's models have the bits of Transformers' own, request by request."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from tests.deterministic.models import random_weights
from tests.loaded_models import engine_config, model_of
from vllm.forward_context import set_forward_context
from vllm.hf_layers.layers.experts import HFExpertsMethod
from vllm.hf_layers.layers.single_row_experts import RowExperts, is_grouped_experts
from vllm.hf_model.group import Group
from vllm.hf_model.stand_ins import stand_in

SHAPE = {
    "vocab_size": 500,
    "hidden_size": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "num_hidden_layers": 1,
    "num_experts_per_tok": 4,
    "eos_token_id": None,
    "bos_token_id": None,
    "pad_token_id": None,
}
MIXTURES: dict[str, dict[str, Any]] = {
    "mixtral": {"intermediate_size": 448, "num_local_experts": 8},
    "olmoe": {"intermediate_size": 96, "num_experts": 16},
    "flex_olmo": {"intermediate_size": 96, "num_experts": 16},
    "qwen2_moe": {
        "moe_intermediate_size": 96,
        "shared_expert_intermediate_size": 200,
        "num_experts": 16,
        "norm_topk_prob": False,
    },
    "qwen3_moe": {"moe_intermediate_size": 96, "num_experts": 16, "norm_topk_prob": True},
}
STARTS = [0, *range(1, 21), 37, 70, 71, 200]


def mixture_of(model: nn.Module) -> Any:
    return next(one for one in model.modules() if hasattr(one, "experts") and hasattr(one, "gate"))


def record_rows(patch: pytest.MonkeyPatch, kind: type[nn.Module]) -> list[int]:
    """Return the numbers of rows that modules of a class compute from now on."""
    forward = kind.forward
    found: list[int] = []

    def recorded(module: nn.Module, x: torch.Tensor, *rest: Any) -> Any:
        found.append(len(x))
        return forward(module, x, *rest)

    patch.setattr(kind, "forward", recorded)
    return found


def save(folder: Path, kind: str, dtype: torch.dtype) -> None:
    config = AutoConfig.for_model(kind, **SHAPE, **MIXTURES[kind])
    random_weights(config, dtype).save_pretrained(folder)


@pytest.mark.some(4)
@torch.inference_mode()
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", MIXTURES)
def test_requests_of_a_step(
    one_rank: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    dtype: torch.dtype,
) -> None:
    """Single tokens and prompts, beside each other."""
    save(tmp_path, kind, dtype)
    theirs = mixture_of(AutoModelForCausalLM.from_pretrained(tmp_path, dtype=dtype).eval())
    config = engine_config(
        tmp_path, dtype=str(dtype).removeprefix("torch."), hf_compat=True, skip_tokenizer_init=True
    )
    ours = mixture_of(model_of(config))
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(STARTS[-1], 256, generator=generator).to(dtype)
    starts = torch.tensor(STARTS)
    step = {"attention": SimpleNamespace(query_start_loc=starts, seq_lens=starts.diff())}
    with set_forward_context(step, config, num_tokens=STARTS[-1]), monkeypatch.context() as patch:
        rows = [record_rows(patch, type(one)) for one in (theirs.gate, theirs.experts)]
        found = ours(x.clone())
    lengths = [end - begin for begin, end in pairwise(STARTS)]
    assert rows == [lengths, [17, 33, 1, 129]]  # some CPUs' kernels would hide it
    alone = [theirs(x[begin:end][None])[0] for begin, end in pairwise(STARTS)]
    assert torch.equal(found, torch.cat(alone))


@torch.inference_mode()
@pytest.mark.parametrize("implementation", ["grouped_mm", "eager"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", MIXTURES)
def test_tokens_that_are_alone(kind: str, dtype: torch.dtype, implementation: str) -> None:
    """Those that go to one expert share a product, where Transformers groups rows by expert."""
    config = AutoConfig.for_model(kind, **SHAPE, **MIXTURES[kind])
    mixture = mixture_of(random_weights(config, dtype))
    mixture.experts.config._experts_implementation = implementation
    generator = torch.Generator().manual_seed(0)
    for count in (1, 2, 40):
        x = torch.randn(count, 256, generator=generator).to(dtype)
        alone = [(row, *mixture.gate(row)[:0:-1]) for row in x.split(1)]
        expected = torch.cat([mixture.experts(*one) for one in alone])
        together = [torch.cat(parts) for parts in zip(*alone, strict=True)]
        assert torch.equal(RowExperts(mixture.experts)(*together), expected)


@torch.inference_mode()
@pytest.mark.parametrize("implementation", ["grouped_mm", "eager"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("size", [256, 1440], ids=str)
def test_experts_with_biases_and_transposed_weights(
    size: int, dtype: torch.dtype, implementation: str
) -> None:
    """gpt-oss's; several blocks of oneDNN's product are in the larger ones."""
    sizes = {"hidden_size": size, "intermediate_size": size, "num_local_experts": 8}
    model: Any = random_weights(AutoConfig.for_model("gpt_oss", **(SHAPE | sizes)), dtype)
    experts = model.model.layers[0].mlp.experts
    assert experts.gate_up_proj_bias.any()
    assert is_grouped_experts(experts)
    experts.config._experts_implementation = implementation
    generator = torch.Generator().manual_seed(0)
    for count in (1, 2, 40):
        x = torch.randn(count, size, generator=generator).to(dtype)
        scores = torch.randn(count, 8, generator=generator).softmax(-1).to(dtype)
        weights, indices = scores.topk(4, dim=-1)
        alone = zip(x.split(1), indices.split(1), weights.split(1), strict=True)
        expected = torch.cat([experts(*one) for one in alone])
        assert torch.equal(RowExperts(experts)(x, indices, weights), expected)


@torch.inference_mode()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", MIXTURES)
def test_a_group_of_exact_mode(
    kind: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tokens share products, but beside an expert for all tokens, whose weight is computed."""
    model = random_weights(AutoConfig.for_model(kind, **SHAPE, **MIXTURES[kind]), dtype)
    mixture = mixture_of(model)
    x = torch.randn(40, 1, 256, generator=torch.Generator().manual_seed(0)).to(dtype)
    alone = torch.cat([mixture(row) for row in x.split(1)])
    rows = record_rows(monkeypatch, type(mixture.experts))
    group = Group()
    stand_in(model, group)
    rows.clear()
    with group.of_rows():
        assert torch.equal(mixture(x), alone)
    assert rows == ([1] * 40 if kind == "qwen2_moe" else [])


@pytest.mark.parametrize(
    "arguments",
    [{}, {"hf_compat": True, "dtype": "float32"}, {"enable_expert_parallel": True}],
    ids=["without hf_compat", "float32", "experts spread over ranks"],
)
def test_mixtures_that_stay_as_they_are(
    one_rank: None, tmp_path: Path, arguments: dict[str, Any]
) -> None:
    save(tmp_path, "mixtral", torch.bfloat16)
    mixture = mixture_of(model_of(engine_config(tmp_path, **arguments)))
    assert not isinstance(mixture.experts.routed_experts.quant_method, HFExpertsMethod)
