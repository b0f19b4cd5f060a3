"""The CUDA kernel of attention in prompts, emulated on the CPU: the bits of the CPU's ops.

What it shares with the simple kernel is in test_cuda_emulation_attention.py, which runs both.
"""

import ctypes
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.kernels import emulated_ops as emulated
from tests.kernels.attention.portable_attention_cases import Case, make_case
from tests.kernels.attention.test_cuda_emulation_attention import Batch
from tests.kernels.emulation import compile_emulation
from tests.kernels.faults import copy_sources, misplaced
from tests.kernels.machine_code import CSRC
from tests.kernels.portable_cases import assert_same, numbers

pytestmark = pytest.mark.some(1)

TOKENS = 1100
"""More than a superblock, and no multiple of a block."""


def small_case(tokens: int, size: int = 64, dtype: torch.dtype = torch.float32) -> Case:
    """Queries and keys of a model: scores of some units."""
    query, keys, values = (numbers(tokens, 1, size, seed=s, dtype=dtype) for s in range(3))
    return Case(query, keys, values)


def assert_prompts_agree(case: Case, queries: int, **choices: Any) -> torch.Tensor:
    batch = Batch([case], [queries])
    expected = batch.expected()
    assert_same(batch.emulated(as_prompts=True, **choices), expected)
    return expected


@pytest.mark.parametrize("size", [64, 128])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_blocks_that_all_rows_see(size: int, dtype: torch.dtype) -> None:
    assert_prompts_agree(small_case(TOKENS, size, dtype), 130)


@pytest.mark.parametrize(
    "variant",
    [
        {"soft_cap": 30.0},
        {"soft_cap": 2.0**-10},
        {"soft_cap": 2.0**17},
        {"slopes": torch.tensor([2.0**-8])},
        {"slopes": torch.tensor([2.0**18])},  # scores up to their limit
        {"slopes": torch.tensor([-1.5])},
        {"soft_cap": 20.0, "slopes": torch.tensor([0.25])},
    ],
    ids=str,
)
def test_blocks_that_all_rows_see_with_a_cap_or_a_slope(variant: dict[str, Any]) -> None:
    case = small_case(TOKENS, dtype=torch.bfloat16)
    case.variant = variant
    assert_prompts_agree(case, 130)


@pytest.mark.parametrize("slope", [torch.inf, -torch.inf, torch.nan])
def test_a_slope_that_is_no_number(slope: float) -> None:
    case = small_case(TOKENS)
    case.variant = {"slopes": torch.tensor([slope])}
    batch = Batch([case], [70])
    assert_same(batch.emulated(as_prompts=True), batch.emulated(splits=1))


@pytest.mark.parametrize(
    ("query", "key", "value"),
    [
        (2.0**60, 2.0**-40, 1.0),  # scores up to their limits
        (2.0**-30, 2.0**-40, 1.0),  # all weights alike
        (1.0, 1.0, 2.0**-60),
        (1.0, 1.0, 2.0**105),  # products with their unit are infinite in part
        (1.0, 0.0, 0.0),
    ],
)
def test_magnitudes(query: float, key: float, value: float) -> None:
    case = small_case(TOKENS)
    case.query.mul_(query)
    case.keys.mul_(key)
    case.values.mul_(value)
    assert_prompts_agree(case, 70)


@pytest.mark.parametrize("exponent", [-100, -21, -20, 20, 21, 60, 110])
def test_one_value_beside_others(exponent: int) -> None:
    """Around the range in which all values of a block are multiplied in one way."""
    case = small_case(TOKENS)
    case.values[500].mul_(2.0**exponent)
    case.values[90:130].mul_(2.0**-exponent)
    assert_prompts_agree(case, 70)


@pytest.mark.parametrize("factor", [2.0**5, 2.0**7, 2.0**8, 2.0**9, 2.0**13])
def test_one_score_beside_others(factor: float) -> None:
    """Around the range in which no score comes to its limit."""
    case = small_case(TOKENS)
    case.query[-20].mul_(factor)
    case.keys[300].mul_(factor)
    assert_prompts_agree(case, 70)


def test_a_product_that_is_infinite() -> None:
    """It stays so beside a finite sum, where fma would give a finite number."""
    case = small_case(TOKENS)
    case.query.zero_()
    case.values.zero_()
    case.values[:64] = -3.1e36
    case.values[64:128] = 5.6e36
    assert assert_prompts_agree(case, 70).isinf().all()


@pytest.mark.some(1)
@pytest.mark.parametrize("seed", range(2, 10))
def test_the_order_of_threads_does_not_matter(seed: int) -> None:
    case = make_case(330, 4, 2, window=150)
    assert_prompts_agree(case, 80, seed=seed)


@pytest.mark.parametrize("heads", [1, 3, 128, 200])
def test_rows_of_many_heads(heads: int) -> None:
    """Pieces begin and end within a token's heads; a token may have more of them than a piece."""
    assert_prompts_agree(make_case(90, heads, 1, 16), 5)


def task_of(queries: int, sequences: int = 1, size: int = 128, **fields: Any) -> Any:
    task = emulated.PagedAttention(queries=queries, heads=32, key_heads=8, sequences=sequences)
    task.cache.page_tiles, task.cache.head_size, task.width = 1, size, 8192
    task.has_warpgroups = True
    for name, value in fields.items():
        setattr(task, name, value)
    return task


@pytest.mark.parametrize(
    ("task", "chosen"),
    [
        (task_of(2048), True),
        (task_of(2048, has_warpgroups=False), False),
        (task_of(2048, size=144), False),
        (task_of(2048, sequences=128), True),
        (task_of(2048, sequences=129), False),
        (task_of(1), False),
        (task_of(200), False),
        (task_of(224), True),
    ],
)
def test_which_kernel_is_launched(task: Any, chosen: bool) -> None:
    """That of prompts: for enough rows of a sequence, and enough of them for a GPU."""
    library = emulated._library("attention")
    assert bool(library.is_launched_as_prompts(ctypes.byref(task))) is chosen
    if chosen:
        assert library.splits_of(ctypes.byref(task)) == 1


FAULTS = {
    "keys are multiplied before they are there": (
        "attention/hopper/prompt_group.cuh",
        "memory.is_full[at.stage].wait(at.parity);\n        laps.end(0);\n        attend",
        "laps.end(0);\n        attend",
    ),
    "a stage is filled before it is empty": (
        "attention/hopper/prompt_loader.cuh",
        "if (is_reused) memory.is_empty[at.stage].wait(at.parity ^ 1);",
        "",
    ),
    "a stage is given back before it was read": (
        "attention/hopper/prompt_group.cuh",
        "attend(block * kBlockTokens, memory.stages[at.stage]);\n        leave();",
        "const int stage = at.stage; leave();\n"
        "        attend(block * kBlockTokens, memory.stages[stage]);",
    ),
    "the wrong phase is awaited": (
        "attention/hopper/prompt_loader.cuh",
        "wait(at.parity ^ 1)",
        "wait(at.parity)",
    ),
    "copies are given before they are there": (
        "attention/hopper/prompt_loader.cuh",
        "wait_for_copies<1>()",
        "wait_for_copies<2>()",
    ),
    "sums are read before they are there": (
        "attention/hopper/prompt_products.cuh",
        "wait_for_products<0>()",
        "wait_for_products<1>()",
    ),
    "a sum is raised before it is there": (
        "attention/hopper/prompt_products.cuh",
        "wait_for_products<1>();\n  raise(upper);",
        "raise(upper);",
    ),
    "a matrix is read at the wrong stride": (
        "attention/hopper/prompt_memory.cuh",
        "static_cast<unsigned int>(behind / 16), kHalfStride, kTileStride);",
        "static_cast<unsigned int>(behind / 16), kMatrix, kTileStride);",
    ),
    "copies are given before products see them": (
        "attention/hopper/prompt_loader.cuh",
        "show_to_products();\n    memory.is_full[at.stage].arrive();",
        "memory.is_full[at.stage].arrive();",
    ),
    "products do not see the digits of queries": (
        "attention/hopper/prompt_attention.cuh",
        "show_to_products();\n  __syncthreads();",
        "__syncthreads();",
    ),
    "barriers begin beside other threads": (
        "attention/hopper/prompt_attention.cuh",
        "show_to_products();\n  __syncthreads();",
        "show_to_products();",
    ),
}


FAULTY_KERNEL = """
#include "cuda/attention/hopper/prompt_attention.cuh"
#include "emulated_launch.h"
using namespace vllm_fork;
extern "C" const char* run_prompt_attention(uint64_t seed, const PagedAttention* task) {
  return emulated(seed, [=] { return launch_prompts<64>(*task, nullptr); });
}
"""


def test_every_fault_has_its_place() -> None:
    assert not misplaced(FAULTS)


@pytest.mark.long
@pytest.mark.parametrize("fault", FAULTS)
def test_the_emulation_finds_faults(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel that forgets to wait, or waits for something else, has other bits or stops."""
    sources = (CSRC / "cuda" / "attention" / "hopper").glob("*.cuh")
    copy_sources(sources, tmp_path, FAULTS[fault])
    source = tmp_path / "faulty.cpp"
    source.write_text(FAULTY_KERNEL)
    here = Path(__file__).parents[1]
    library = compile_emulation(source, tmp_path, f"-I{tmp_path}", f"-I{here}")
    batch = Batch([make_case(420, 4, 1)], [40])
    expected = batch.expected()
    monkeypatch.setattr(emulated, "_library", lambda _: library)
    assert any(is_found(batch, expected, seed) for seed in range(1, 21)), "no schedule has shown it"


def is_found(batch: Batch, expected: torch.Tensor, seed: int) -> bool:
    try:
        return not torch.equal(batch.emulated(as_prompts=True, seed=seed), expected)
    except AssertionError as error:
        return bool(re.search("Not all threads|has not begun|beside|not shown", str(error)))
