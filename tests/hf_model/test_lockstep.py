"""Calls that wait for each other at their products, and hybrids, which are computed so."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    FalconH1Config,
    JambaConfig,
    Lfm2Config,
    Mamba2Config,
    PreTrainedConfig,
    Qwen3NextConfig,
)

from tests.hf_layers.test_other_models import MAMBA2, QWEN3_NEXT
from vllm.hf_model.alone import Alone
from vllm.hf_model.generate_call import GenerateCall
from vllm.hf_model.group import Group
from vllm.hf_model.grouped_decode import GroupedDecode, why_no_group
from vllm.hf_model.kv_pages import LayerPages
from vllm.hf_model.lockstep import Lockstep
from vllm.hf_model.model_cache import ModelCache
from vllm.hf_model.self_check import GROUP_SIZES, equal_group_sizes
from vllm.hf_model.stand_ins import stand_in
from vllm.hf_model.state_layers import state_layers

SMALL: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 512,
}  # fmt: skip
HYBRIDS: list[PreTrainedConfig] = [
    Mamba2Config(**MAMBA2),
    Qwen3NextConfig(**QWEN3_NEXT),
    FalconH1Config(
        **SMALL, num_hidden_layers=2, mamba_d_ssm=64, mamba_n_heads=4, mamba_d_head=16,
        mamba_d_state=16, mamba_n_groups=1, head_dim=16,
    ),
    Lfm2Config(**SMALL, num_hidden_layers=2, layer_types=["conv", "full_attention"]),
    JambaConfig(
        **SMALL, num_hidden_layers=4, attn_layer_period=2, attn_layer_offset=1,
        expert_layer_period=2, expert_layer_offset=1, num_experts=4, mamba_d_state=8,
        mamba_dt_rank=8, use_mamba_kernels=False,
    ),
]  # fmt: skip


def test_pages_with_room_for_larger_ones() -> None:
    """Blocks of hybrids have one size, whatever a layer has of a token; the rest stays empty."""
    few, many = LayerPages(1, 8, 8, torch.float32), LayerPages(3, 8, 8, torch.float32)
    few.make_room(many.form)
    memory = torch.zeros(2, 3, 4, 16)
    few.kv_cache = memory
    slots = few.slots_of(torch.tensor([[1]]), [(0, 3)])
    keys, values = torch.randn(3, 1, 8), torch.randn(3, 1, 8)
    few.write(slots, keys, values)
    found = few.read(torch.tensor([1]), 0, 3)
    assert torch.equal(found[0][0, 0], keys[:, 0])
    assert torch.equal(found[1][0, 0], values[:, 0])
    assert not memory[0].any()
    assert not memory[1].flatten()[4 * 16 :].any()
    few.kv_cache = few.kv_cache.clone()  # as the start-up check puts its own memory in its place
    assert torch.equal(few.read(torch.tensor([1]), 0, 3)[0], found[0])


def test_what_calls_share_is_computed_once() -> None:
    lockstep, shared = Lockstep(), []

    def double(rows: torch.Tensor) -> torch.Tensor:
        shared.append(rows.flatten().tolist())
        return 2 * rows

    def call(i: int) -> list[float]:
        first = lockstep.share(double, torch.tensor([[float(i)]]))
        return lockstep.share(double, first + 1).flatten().tolist()

    assert lockstep.run([partial(call, i) for i in range(3)]) == [[2.0], [6.0], [10.0]]
    assert shared == [[0.0, 1.0, 2.0], [1.0, 3.0, 5.0]]
    assert not lockstep.is_running
    assert lockstep.share(double, torch.ones(1, 1)).item() == 2.0


def test_calls_may_go_different_ways() -> None:
    """One comes to another product first, one shares rows of another number, one shares nothing."""
    lockstep, counts = Lockstep(), []

    def counting(name: str) -> Callable[[torch.Tensor], torch.Tensor]:
        def count(rows: torch.Tensor) -> torch.Tensor:
            counts.append((name, len(rows)))
            return rows + 1

        return count

    one, other = counting("one"), counting("other")

    def two(start: float, num_rows: int) -> torch.Tensor:
        return lockstep.share(one, torch.full((num_rows, 1), start))

    def three() -> torch.Tensor:
        return lockstep.share(one, lockstep.share(other, torch.zeros(1, 1)))

    found = lockstep.run([partial(two, 5.0, 2), three, lambda: None, partial(two, 7.0, 1)])
    assert [None if rows is None else rows.flatten().tolist() for rows in found] == [
        [6.0, 6.0], [2.0], None, [8.0],
    ]  # fmt: skip
    assert counts == [("one", 3), ("other", 1), ("one", 1)]


def test_an_error_ends_all() -> None:
    lockstep = Lockstep()

    def fail() -> None:
        lockstep.share(torch.neg, torch.zeros(1, 1))
        raise ArithmeticError("of a call")

    with pytest.raises(ArithmeticError, match="of a call"):
        lockstep.run([fail, partial(lockstep.share, torch.neg, torch.zeros(1, 1))])
    assert not lockstep.is_running
    assert lockstep.run([lambda: 1]) == [1]


@pytest.mark.parametrize("config", HYBRIDS, ids=lambda one: one.model_type)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_requests_of_hybrids_are_computed_together(
    config: PreTrainedConfig, dtype: torch.dtype
) -> None:
    """In groups of all sizes, with the logits, keys, values and states that each has alone."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).to(dtype).eval()
    call, group = GenerateCall(model), Group()
    cache = ModelCache(call)
    with_states = state_layers(call)
    assert len(with_states) == sum(bool(layer.states) for layer in cache.layers)
    assert why_no_group(model, cache) is None
    grouped = GroupedDecode(call, cache, group)
    stand_in(model, group, with_states)
    sizes, reason = equal_group_sizes(
        grouped, Alone(call, cache), cache, config.vocab_size, model.device
    )
    assert (sizes, reason) == ([*GROUP_SIZES], "")


def test_states_that_are_not_those_of_each_request_are_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = AutoModelForCausalLM.from_config(Mamba2Config(**MAMBA2)).eval()
    call, group = GenerateCall(model), Group()
    cache = ModelCache(call)
    grouped = GroupedDecode(call, cache, group)
    stand_in(model, group, state_layers(call))
    monkeypatch.setattr("vllm.hf_model.group_cache.GroupCache.of_request", _of_the_first)
    sizes, reason = equal_group_sizes(
        grouped, Alone(call, cache), cache, model.config.vocab_size, model.device
    )
    assert (sizes, reason) == ([1], "")


def _of_the_first(cache: Any, i: int) -> Any:
    """Return another request's cache."""
    own = type(cache)(cache._cached, {}, cache._positions[:1], cache._states[:1])
    own.layers = [layer.load_states(cache._states[0]) for layer in cache._cached]
    return own
