"""split_qkv: the parts of a fused projection are multiplied separately; nothing else changes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional
from transformers import LlamaConfig

from tests.loaded_models import LoadModel
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.hf_layers.layers import split_linear
from vllm.hf_layers.layers.linear import HFLinearMethod, use_plain_products
from vllm.hf_layers.layers.split_linear import SplitLinearMethod, part_sizes, split_projections
from vllm.model_executor.layers.linear import (
    ColumnParallelLinear,
    LinearBase,
    LinearMethodBase,
    MergedColumnParallelLinear,
    QKVParallelLinear,
    UnquantizedLinearMethod,
)

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
ROWS = {"q": 128, "k": 64, "v": 64}


class Attention(nn.Module):
    """One fused projection: 4 heads and 2 key-value heads of size 32, hidden size 96."""

    packed_modules_mapping = {"qkv_proj": ["q_proj", "k_proj", "v_proj"]}  # noqa: RUF012

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.qkv_proj = QKVParallelLinear(96, 32, 4, 2, bias=True, params_dtype=dtype)


@pytest.fixture(autouse=True)
def _configured(one_rank: None) -> Iterator[None]:
    with set_current_vllm_config(VllmConfig()):
        yield


def matrices(dtype: torch.dtype) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return {
        name: (
            torch.randn(rows, 96, generator=generator).to(dtype),
            torch.randn(rows, generator=generator).to(dtype),
        )
        for name, rows in ROWS.items()
    }


def loaded_attention(dtype: torch.dtype, *, plain: bool) -> LinearBase:
    model = Attention(dtype)
    if plain:
        use_plain_products(model, LlamaConfig())
    split_projections(model, required=True)
    layer = model.qkv_proj
    for name, (weight, bias) in matrices(dtype).items():
        layer.weight.weight_loader(layer.weight, weight, name)
        layer.bias.weight_loader(layer.bias, bias, name)
    layer.quant_method.process_weights_after_loading(layer)
    return layer


def stock_product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """What vLLM computes for a layer that was never fused."""
    layer = ColumnParallelLinear(96, weight.shape[0], params_dtype=weight.dtype)
    layer.weight.data.copy_(weight)
    layer.bias.data.copy_(bias)
    layer.quant_method.process_weights_after_loading(layer)
    return layer(x)[0]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("num_rows", [1, 5, 64])
@pytest.mark.parametrize("plain", [True, False], ids=["hf_compat", "alone"])
def test_each_part_is_the_product_with_the_unfused_weight(
    dtype: torch.dtype, num_rows: int, plain: bool
) -> None:
    layer = loaded_attention(dtype, plain=plain)
    x = torch.randn(num_rows, 96, generator=torch.Generator().manual_seed(2)).to(dtype)
    product = functional.linear if plain else stock_product
    expected = [product(x, weight, bias) for weight, bias in matrices(dtype).values()]
    parts = layer(x)[0].split(list(ROWS.values()), dim=-1)
    for ours, theirs in zip(parts, expected, strict=True):
        assert torch.equal(ours, theirs)


def test_products_have_the_shapes_of_the_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above would pass a fused product where the kernel rounds both alike."""
    layer = loaded_attention(torch.float32, plain=True)
    shapes = []

    def observed(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        shapes.append(weight.shape)
        return functional.linear(x, weight, bias)

    method: Any = layer.quant_method
    for part in method._packed:
        monkeypatch.setattr(part, "cpu_linear", observed)
    layer(torch.ones(2, 96))
    assert shapes == [(128, 96), (64, 96), (64, 96)]


def test_parts_are_views_of_the_parameter() -> None:
    layer = loaded_attention(torch.float32, plain=True)
    storage = layer.weight.untyped_storage()
    method: Any = layer.quant_method
    offsets = [part.weight.data_ptr() - storage.data_ptr() for part in method._packed]
    assert offsets == [0, 128 * 96 * 4, 192 * 96 * 4]
    assert storage.nbytes() == 256 * 96 * 4
    bias = layer.bias.untyped_storage().data_ptr()
    assert all(part.bias.untyped_storage().data_ptr() == bias for part in method._packed)


def test_packed_parts_replace_the_parameter() -> None:
    layer = loaded_attention(torch.float32, plain=False)
    method: Any = layer.quant_method
    assert layer.weight.numel() == 0
    assert [part.weight.numel() for part in method._packed] == [0, 0, 0]


def test_skipped_bias_is_not_added() -> None:
    layer = loaded_attention(torch.float32, plain=True)
    x = torch.ones(3, 96)
    plain = layer.quant_method.apply(layer, x, None)
    assert torch.equal(plain + layer.bias, layer.quant_method.apply(layer, x, layer.bias))
    assert not torch.equal(plain, plain + layer.bias)


@pytest.mark.parametrize(
    ("loaded", "sources", "expected"),
    [
        (["q", "k", "v"], 3, [4, 2, 1]),
        (["v", "q", "k"], None, [4, 2, 1]),  # a model without the mapping
        ([0, 1, 2], None, [4, 2, 1]),
        ([(0, 1), 2], None, [6, 1]),  # a checkpoint that packs two of the three
        ([], 3, [4, 2, 1]),  # random weights
        ([], None, None),
        ([], 2, None),
        ([None], 3, None),  # Phi-3, GLM-4: one matrix, whatever the mapping says
        (["q", "k", "v"], 1, None),  # InternLM2: one matrix that vLLM takes apart to load it
        (["q", "k"], 3, None),
    ],
)
def test_parts_are_those_of_hugging_face(
    loaded: list[Any], sources: int | None, expected: list[int] | None
) -> None:
    assert part_sizes([4, 2, 1], loaded, sources) == expected


class Quantised(LinearMethodBase):
    """Stands for any method of a quantisation."""

    def create_weights(self, *args: Any, **kwargs: Any) -> None: ...
    def apply(self, *args: Any, **kwargs: Any) -> None: ...


def test_quantised_projection_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    attention, method = Attention(torch.float32), Quantised()
    attention.qkv_proj.quant_method = method
    model = nn.Sequential(attention)
    with pytest.raises(ValueError, match=r"cannot split 0\.qkv_proj, .* \(Quantised\)"):
        split_projections(model, required=True)
    logged = []
    monkeypatch.setattr(split_linear.logger, "warning_once", lambda *args: logged.append(args[1]))
    split_projections(model, required=False)
    assert attention.qkv_proj.quant_method is method
    assert logged == ["Quantised"]


def fused_layers(model: nn.Module) -> dict[str, LinearBase]:
    return {
        name.rpartition(".")[2]: layer
        for name, layer in model.named_modules()
        if isinstance(layer, QKVParallelLinear | MergedColumnParallelLinear)
    }


QKV = ("q_proj", "k_proj", "v_proj")
GATE_UP = ("gate_proj", "up_proj")
NARROW: dict[str, dict[str, tuple[str, ...]]] = {
    "tinyllama-1.1b": {"qkv_proj": QKV, "gate_up_proj": GATE_UP},
    "qwen2-0.5b": {"qkv_proj": QKV, "gate_up_proj": GATE_UP},  # with biases
    "opt-125m": {"qkv_proj": QKV},  # with biases
    "gemma2-2b": {"qkv_proj": QKV, "gate_up_proj": GATE_UP},
    "phi3-mini": {"qkv_proj": (), "gate_up_proj": ()},
    "falcon-7b": {"query_key_value": ()},
    "bloom-560m": {"query_key_value": ()},
    "gpt2": {"c_attn": ()},
}
"""Fused projections of a model, and the checkpoint's own; none where it has one matrix too."""


def unfused(parts: tuple[str, ...], folder: Path) -> list[list[torch.Tensor]]:
    """Weight and bias, if there is one, of each part, as the checkpoint has them."""
    weights = load_file(folder / "model.safetensors")
    return [
        [tensor for key in ("weight", "bias") for name, tensor in weights.items()
         if name.endswith(f".{part}.{key}")]
        for part in parts
    ]  # fmt: skip


@pytest.mark.some(4)
@pytest.mark.parametrize("shape", NARROW)
def test_models_split_what_their_checkpoints_have_apart(load_model: LoadModel, shape: str) -> None:
    model, folder = load_model(shape, hf_compat=True)
    layers = fused_layers(model)
    assert layers.keys() == NARROW[shape].keys()
    for name, parts in NARROW[shape].items():
        layer: Any = layers[name]
        if not parts:
            assert getattr(layer.quant_method, "sizes", None) is None
            continue
        assert len(layer.quant_method.sizes) == len(parts)
        x = torch.randn(1, layer.input_size).to(torch.bfloat16)
        expected = [functional.linear(x, *tensors) for tensors in unfused(parts, folder)]
        assert torch.equal(layer(x)[0], torch.cat(expected, dim=-1))


def test_flags(load_model: LoadModel) -> None:
    """Off touches nothing; hf_compat can do without; alone it leaves the other layers."""
    plain, _ = load_model("tinyllama-1.1b")
    without, _ = load_model("tinyllama-1.1b", hf_compat=True, split_qkv=False)
    alone, _ = load_model("tinyllama-1.1b", split_qkv=True)

    def methods(model: nn.Module) -> set[type]:
        return {type(m.quant_method) for m in model.modules() if isinstance(m, LinearBase)}

    assert methods(plain) == {UnquantizedLinearMethod}
    assert methods(without) == {HFLinearMethod}
    assert methods(alone) == {UnquantizedLinearMethod, SplitLinearMethod}
