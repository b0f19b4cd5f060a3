"""LoRA adapters: the bits of the reference, of each row with its own adapter; refusals."""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.engines import MODEL
from tests.kernels.portable_cases import as_floats, assert_same, bits, numbers
from tests.kernels.product.portable_product_reference import (
    Floats,
    exponents_of,
    product_bits,
    rounded_bits,
    statistics_of,
    sums_of,
    with_bias,
)
from vllm.fork_kernels.portable.product import sum_partials

pytestmark = pytest.mark.fast

IN, MAX_RANK = 96, 16
Adapter = tuple[list[torch.Tensor | None], list[torch.Tensor | None]]


@pytest.fixture
def configured(one_rank: None) -> Iterator[Any]:
    from vllm.config import set_current_vllm_config
    from vllm.engine.arg_utils import EngineArgs

    args = EngineArgs(str(MODEL), dtype="bfloat16", deterministic=True, enable_lora=True)
    config = args.create_engine_config()
    with set_current_vllm_config(config):
        yield config


def base_layer(kind: str) -> Any:
    """A linear layer as models make them."""
    from vllm.model_executor.layers.linear import (
        ColumnParallelLinear,
        MergedColumnParallelLinear,
        QKVParallelLinear,
        ReplicatedLinear,
        RowParallelLinear,
    )

    common: Any = {"params_dtype": torch.bfloat16, "prefix": kind}
    if kind == "qkv":
        return QKVParallelLinear(IN, 16, 4, 2, bias=True, **common)
    if kind == "gate_up":
        return MergedColumnParallelLinear(IN, [40, 40], bias=False, **common)
    plain = {"row": RowParallelLinear, "column": ColumnParallelLinear, "whole": ReplicatedLinear}
    return plain[kind](IN, 56, bias=kind == "row", **common)


PARTS = {"qkv": [64, 32, 32], "gate_up": [40, 40], "row": [56], "column": [56], "whole": [56]}


def wrapped(kind: str, config: Any, slots: torch.Tensor) -> Any:
    """A layer with random weights that vLLM wrapped for adapters, with portable bits."""
    from vllm.deterministic.layers import use_portable_layers
    from vllm.deterministic.lora.layers import use_portable_adapters
    from vllm.lora.layers import (
        ColumnParallelLinearWithLoRA,
        MergedColumnParallelLinearWithLoRA,
        MergedQKVParallelLinearWithLoRA,
        ReplicatedLinearWithLoRA,
        RowParallelLinearWithLoRA,
    )

    wrappers: dict[str, Any] = {
        "qkv": MergedQKVParallelLinearWithLoRA,
        "gate_up": MergedColumnParallelLinearWithLoRA,
        "row": RowParallelLinearWithLoRA,
        "column": ColumnParallelLinearWithLoRA,
        "whole": ReplicatedLinearWithLoRA,
    }
    model: Any = nn.ModuleDict({kind: base_layer(kind)})
    use_portable_layers(model, config)
    base = model[kind]
    base.weight.data, bias = base_weights(kind)
    if base.bias is not None:
        base.bias.data = bias
    base.quant_method.process_weights_after_loading(base)
    layer = wrappers[kind](base)
    layer.create_lora_weights(3, SimpleNamespace(
        max_lora_rank=MAX_RANK, fully_sharded_loras=False, lora_dtype=torch.bfloat16
    ))  # fmt: skip
    punica = SimpleNamespace(_token_lora_indices=torch.zeros(64), token_lora_indices=slots)
    layer.set_mapping(punica)
    model.lora_manager = SimpleNamespace(
        modules={kind: layer}, punica_wrapper_mapping={"": punica}, activate_adapter=None
    )
    use_portable_adapters(model)
    return layer


def base_weights(kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    size = sum(PARTS[kind])
    return (
        numbers(size, IN, seed=21, dtype=torch.bfloat16),
        numbers(size, seed=22, dtype=torch.bfloat16),
    )


def adapter(kind: str, rank: int, missing: int | None = None) -> Adapter:
    """A and B of each part of a layer; of one part there may be none."""
    lora_a: list[torch.Tensor | None] = []
    lora_b: list[torch.Tensor | None] = []
    for i, size in enumerate(PARTS[kind]):
        is_given = i != missing
        seed = 100 * rank + 2 * i
        a = numbers(rank, IN, seed=seed, dtype=torch.bfloat16, scale=2.0 ** (3 * i))
        b = numbers(size, rank, seed=seed + 1, dtype=torch.bfloat16)
        lora_a.append(a if is_given else None)
        lora_b.append(b if is_given else None)
    return lora_a, lora_b


def product(x: Floats, weight: Floats, exponents: Any) -> Floats:
    return product_bits(x, weight, exponents, None, "float32").view(np.float32)


def expected(kind: str, x: torch.Tensor, lora: Adapter | None) -> torch.Tensor:
    """What the specification says of rows with one adapter."""
    weight, bias = (as_floats(tensor) for tensor in base_weights(kind))
    rows = as_floats(x)
    sums = sums_of(rows, weight, exponents_of(statistics_of(weight)), math.gcd(IN, 8))
    if lora is not None:
        given = [as_floats(a) for a in lora[0] if a is not None]
        shared = exponents_of(statistics_of(np.concatenate(given)))
        start = 0
        for a, b, size in zip(*lora, PARTS[kind], strict=True):
            if a is not None and b is not None:
                own = exponents_of(statistics_of(as_floats(b)))
                share = product(product(rows, as_floats(a), shared), as_floats(b), own)
                sums[:, start : start + size] += share
            start += size
    has_bias = kind in ("qkv", "row")
    found = rounded_bits(with_bias(sums, bias if has_bias else None), "bfloat16")
    return torch.from_numpy(found.view(np.int16)).view(torch.bfloat16)


def given(kind: str, lora: Adapter) -> tuple[Any, Any]:
    """As vLLM gives an adapter to a layer of one part or of several."""
    return (lora[0][0], lora[1][0]) if len(PARTS[kind]) == 1 else lora


SLOTS = torch.tensor([0, -1, 2, 2, 0, 1, -1, 0])


@pytest.mark.parametrize("kind", PARTS)
def test_each_row_with_its_adapter(configured: Any, kind: str) -> None:
    from vllm.deterministic.guard import only_exact_operations

    layer = wrapped(kind, configured, SLOTS)
    adapters: dict[int, Adapter | None] = {-1: None, 1: None}  # the slot 1 has been emptied
    layer.set_lora(1, *given(kind, adapter(kind, 8)))
    layer.reset_lora(1)
    for slot, rank in ((0, 12), (2, 3)):
        several = len(PARTS[kind]) > 1
        lora = adapter(kind, rank, missing=1 if several and slot == 2 else None)
        layer.set_lora(slot, *given(kind, lora))
        adapters[slot] = lora
    x = numbers(len(SLOTS), IN, seed=23, dtype=torch.bfloat16, scale=8.0)
    with only_exact_operations(kind):
        actual = layer(x)[0]
    for slot, found in adapters.items():
        own = slot == SLOTS
        assert_same(actual[own], expected(kind, x[own], found))
    layer.punica_wrapper.token_lora_indices = SLOTS[3:4]
    assert_same(layer(x[3:4])[0], actual[3:4])


def test_without_adapters_nothing_changes(configured: Any) -> None:
    """Beside a row with an adapter the others have the bits of the plain layer."""
    layer = wrapped("row", configured, SLOTS)
    x = numbers(len(SLOTS), IN, seed=24, dtype=torch.bfloat16, scale=8.0)
    x[1] = 0
    plain = layer.base_layer(x)[0]
    assert_same(layer(x)[0], plain)
    layer.set_lora(2, *given("row", adapter("row", 8)))
    differs = (bits(layer(x)[0]) != bits(plain)).any(-1)
    assert differs.tolist() == (SLOTS == 2).tolist()


def test_ranks_that_split_input_channels(configured: Any) -> None:
    from vllm.deterministic.lora.layers import _packed, _parts

    layer = wrapped("row", configured, SLOTS)
    parts = _parts(layer, *given("row", adapter("row", 12)))
    x = numbers(9, IN, seed=25, dtype=torch.bfloat16, scale=8.0)
    whole = _packed(layer, parts)
    layer.tp_size = layer.base_layer.tp_size = 2
    layer.input_size = IN // 2
    partials = []
    for layer.tp_rank in range(2):
        rank = _packed(layer, parts)
        partials.append(rank.reduce(x.chunk(2, dim=1)[layer.tp_rank].contiguous()))
        assert torch.equal(rank.expansions[0].weight.packed, whole.expansions[0].weight.packed)
    assert_same(sum_partials(torch.stack(partials)), whole.reduce(x))


def test_ranks_that_split_outputs(configured: Any) -> None:
    from vllm.deterministic.lora.layers import _packed, _parts

    layer = wrapped("gate_up", configured, SLOTS)
    parts = _parts(layer, *adapter("gate_up", 12))
    reduced = numbers(9, 24, seed=26)
    rows = torch.arange(9)

    def share() -> torch.Tensor:
        values = torch.zeros(9, sum(layer.output_slices))
        _packed(layer, parts).expand(reduced, values, rows)
        return values

    whole = share().split(40, dim=1)
    layer.tp_size, layer.output_slices = 2, (20, 20)
    for rank in range(2):
        layer.output_ids = (rank, rank)
        own = torch.cat([part.chunk(2, dim=1)[rank] for part in whole], dim=1)
        assert_same(share(), own)


def test_adapters_of_experts_are_refused(configured: Any) -> None:
    from vllm.deterministic.layers import use_portable_layers
    from vllm.model_executor.layers.fused_moe.layer import FusedMoEFactory

    experts = FusedMoEFactory(
        num_experts=4, top_k=2, hidden_size=64, intermediate_size=32, prefix="experts"
    )
    with pytest.raises(ValueError, match=r"compute experts .* adapters of experts are not"):
        use_portable_layers(nn.ModuleDict({"experts": experts}), configured)


def test_ranks_whose_slots_have_other_numbers_exchange_the_same_numbers(
    configured: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM goes through a set of adapters, whose order each process has of its own."""
    from vllm.deterministic.lora import layers

    sent: list[list[torch.Tensor]] = []

    def gather(partial: torch.Tensor) -> torch.Tensor:
        sent[-1].append(partial)
        return partial.unsqueeze(0)

    x = numbers(5, IN, seed=23, dtype=torch.bfloat16, scale=8.0)
    for first, second in ((0, 1), (1, 0)):
        layer = wrapped("row", configured, torch.tensor([first, -1, second, second, first]))
        layer.set_lora(first, *given("row", adapter("row", 12)))
        layer.set_lora(second, *given("row", adapter("row", 3)))
        with monkeypatch.context() as patch:
            patch.setattr(layers, "adds_ranks", lambda _: True)
            patch.setattr(layers, "sums_of_ranks", gather)
            sent.append([])
            layer.apply(x)
    for one, other in zip(*sent, strict=True):
        assert_same(one, other)
