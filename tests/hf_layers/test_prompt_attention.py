"""Attention in prompts has PyTorch's bits, whichever kernel computes it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from vllm.fork_kernels import has_prompt_order, prompt_sdpa
from vllm.hf_layers.attention import prompt_attention
from vllm.hf_layers.attention.paged_attention import Heads
from vllm.hf_layers.attention.prompt_attention import attend_to_prompts, has_the_order
from vllm.hf_layers.products.single_row_products import same_bits

BLOCK_SIZE = 16
# Blocks of PyTorch's are of 32, 64 or 256 queries, MKL's of up to 192 values.
LENGTHS = (1, 2, 5, 12, 13, 20, 32, 33, 36, 63, 64, 65, 100, 191, 192, 200, 255, 257, 320, 383, 384)
LONG = (385, 500, 511, 512, 513, 530, 767, 800, 1030)


def cancelling(shape: tuple[int, ...], dim: int, generator: torch.Generator) -> torch.Tensor:
    """Numbers of many sizes, with their opposites: sums of them are what was rounded on the way."""
    numbers = torch.randn(shape, generator=generator)
    numbers *= torch.exp2(torch.randint(-6, 6, shape, generator=generator).float())
    half, _ = numbers.chunk(2, dim)
    return torch.cat((half, -half), dim)


def prompts(
    lengths: tuple[int, ...],
    num_heads: int,
    num_kv_heads: int,
    size: int,
    dtype: torch.dtype = torch.bfloat16,
) -> dict[str, Any]:
    """Prompts of these lengths, one behind the other, with pages in no order."""
    generator = torch.Generator().manual_seed(num_heads)
    per_prompt = -(-max(lengths) // BLOCK_SIZE)
    num_blocks = len(lengths) * per_prompt
    shape = (num_blocks, num_kv_heads, BLOCK_SIZE, size)
    keys, values = cancelling(shape, -1, generator), cancelling(shape, 2, generator)
    ends = torch.tensor(lengths).cumsum(0).tolist()
    rows = enumerate(zip(ends, lengths, strict=True))
    half = torch.randn(ends[-1], num_heads, size // 2, generator=generator)
    return {
        "query": half.repeat(1, 1, 2).to(dtype),
        "pages": torch.cat((keys, values), -1).to(dtype),
        "blocks": torch.randperm(num_blocks, generator=generator).int().view(-1, per_prompt),
        "spans": torch.tensor([(end - num, end, row, num) for row, (end, num) in rows]),
        "result": torch.empty(ends[-1], num_heads, size, dtype=dtype),
        "key_size": size,
        "scale": None,
        "enable_gqa": num_heads != num_kv_heads,
    }


def alone(given: dict[str, Any]) -> torch.Tensor:
    """Return what PyTorch's function gives each prompt."""
    found = []
    for begin, end, row, length in given["spans"].tolist():
        own = given["pages"][given["blocks"][row].long()].transpose(0, 1).flatten(1, 2)
        key, value = (x.contiguous() for x in own[None, :, :length].chunk(2, dim=-1))
        query = given["query"][begin:end].transpose(0, 1)[None]
        options = {"scale": given["scale"], "enable_gqa": given["enable_gqa"]}
        attended = scaled_dot_product_attention(query, key, value, is_causal=length > 1, **options)
        found.append(attended[0].transpose(0, 1))
    return torch.cat(found)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "size"), [(4, 2, 64), (6, 6, 80), (8, 1, 32), (4, 4, 128), (3, 3, 40)]
)
def test_prompts_of_many_lengths(dtype: torch.dtype, heads: int, kv_heads: int, size: int) -> None:
    """On any CPU: where the kernel has other bits, it is not used."""
    given = prompts(LENGTHS, heads, kv_heads, size, dtype)
    attend_to_prompts(**given)
    assert same_bits(given["result"], alone(given))


def takes_order() -> bool:
    """Whether this is a CPU whose order the kernel of `in_one` has."""
    return has_the_order(Heads(4, 2, 64, 128, torch.bfloat16, enable_gqa=True), 64)


other_order = pytest.mark.skipif(
    not takes_order(), reason="MKL has another order here, and the kernel is not used"
)


@other_order
@pytest.mark.parametrize(("heads", "kv_heads"), [(8, 8), (8, 2), (6, 1), (3, 1)])
@pytest.mark.parametrize("size", [16, 64, 80, 128, 192])
@pytest.mark.parametrize("scale", [None, 0.02, 3.0])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_the_kernel(
    heads: int, kv_heads: int, size: int, scale: float | None, dtype: torch.dtype
) -> None:
    lengths = tuple(n for n in LENGTHS + LONG if has_prompt_order(n, size, dtype))
    assert len(lengths) > 18
    given = prompts(lengths, heads, kv_heads, size, dtype) | {"scale": scale}
    prompt_sdpa(**given, in_one=True)
    assert same_bits(given["result"], alone(given))


@other_order
@pytest.mark.parametrize("earlier", [1, 7, 64, 129])
def test_the_end_of_a_prompt(earlier: int) -> None:
    """Whose beginning is in the cache: rows are those that they are in the whole prompt."""
    given = prompts((150, 300), 4, 2, 64)
    expected = alone(given)
    spans = given["spans"].clone()
    spans[:, 0] += earlier
    given["result"].fill_(7)
    attend_to_prompts(**given | {"spans": spans})
    for (begin, end, *_), (whole, *_) in zip(spans.tolist(), given["spans"].tolist(), strict=True):
        assert same_bits(given["result"][begin:end], expected[begin:end])
        assert given["result"][whole:begin].eq(7).all()


@other_order
@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan"), 3e38], ids=str)
@pytest.mark.parametrize("column", [0, 64], ids=["a key", "a value"])
@pytest.mark.parametrize("token", [0, 30, 70, 99])
def test_extreme_numbers(value: float, column: int, token: int) -> None:
    """A value that is not finite is multiplied by zero where it is not seen, as in PyTorch."""
    given = prompts((100,), 4, 2, 64)
    given["pages"][given["blocks"][0, token // 16].item(), :, token % 16, column] = value
    prompt_sdpa(**given, in_one=True)
    expected = alone(given)
    assert torch.equal(given["result"].isnan(), expected.isnan())
    assert same_bits(given["result"].nan_to_num(), expected.nan_to_num())


def test_prompts_for_which_there_is_no_kernel() -> None:
    """Products of few rows have other orders."""
    assert not has_prompt_order(11, 64, torch.bfloat16)
    assert not has_prompt_order(34, 64, torch.bfloat16)
    assert not has_prompt_order(64, 208, torch.bfloat16)
    assert not has_prompt_order(64, 40, torch.bfloat16)
    assert not has_prompt_order(64, 64, torch.float32)
    assert not has_prompt_order(515, 64, torch.bfloat16)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"scale": 0.0}, "a positive scale, but it is 0"),
        ({"key_size": 48, "query": torch.zeros(64, 4, 48).bfloat16()}, "the same multiple of 16"),
        ({"pages": torch.zeros(4, 3, 16, 128).bfloat16()}, "a multiple of the 3 heads"),
    ],
)
@other_order
def test_what_in_one_cannot_be(changes: dict[str, Any], sentence: str) -> None:
    given = prompts((64,), 4, 2, 64) | changes
    width = given["pages"].shape[-1] - given["key_size"]
    given["result"] = torch.empty(64, 4, width, dtype=torch.bfloat16)
    with pytest.raises(RuntimeError, match=sentence):
        prompt_sdpa(**given, in_one=True)


@pytest.mark.parametrize("what", ["scores", "weights", "values"])
def test_another_order_is_found(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator that rounds elsewhere, on a CPU of any kind, is not taken for PyTorch's."""

    def other(result: torch.Tensor, in_one: bool, **given: Any) -> None:
        if not in_one:
            prompt_sdpa(result=result, **given)
            return
        own = given["pages"].transpose(0, 1).flatten(1, 2)[:, : len(result)]
        key, value = own.double().chunk(2, -1)
        scores = given["query"].transpose(0, 1).double() @ key.mT
        scores = scores * (given["scale"] or given["key_size"] ** -0.5)
        scores = scores if what == "scores" else scores.float().double()
        hidden = torch.ones(scores.shape[-2:]).triu(1).bool()
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        weights = weights if what == "weights" else weights.bfloat16().double()
        result.copy_((weights @ value).transpose(0, 1))

    monkeypatch.setattr(prompt_attention, "prompt_sdpa", other)
    has_the_order.cache_clear()
    heads = Heads(4, 4, 64, 128, torch.bfloat16, enable_gqa=False)
    try:
        assert not has_the_order(heads, 100)
    finally:
        has_the_order.cache_clear()
