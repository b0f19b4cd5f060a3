"""``paged_sdpa`` has the bits of PyTorch's function for each request alone."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from vllm.fork_kernels import has_token_attention, paged_sdpa
from vllm.hf_layers.attention.paged_attention import Heads, has_the_order
from vllm.hf_layers.products.probe.token_orders import token_orders

pytestmark = pytest.mark.fast

BLOCK_SIZE = 16
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
# Longer than the 512 keys that PyTorch's kernel for CPUs takes at a time, too.
LENGTHS = (1, 2, 15, 16, 17, 100, 513, 1200)


def arguments(
    dtype: torch.dtype, num_heads: int = 8, num_kv_heads: int = 2, sizes: tuple[int, int] = (64, 64)
) -> dict[str, Any]:
    """Random queries, and keys and values in blocks that are in no order."""
    generator = torch.Generator().manual_seed(0)
    per_request = -(-max(LENGTHS) // BLOCK_SIZE)
    num_blocks = per_request * len(LENGTHS)
    pages = torch.randn(num_blocks, num_kv_heads, BLOCK_SIZE, sum(sizes), generator=generator)
    blocks = torch.randperm(num_blocks, generator=generator).to(torch.int32)
    query = torch.randn(len(LENGTHS), num_heads, 1, sizes[0], generator=generator)
    return {
        "query": query.to(dtype),
        "pages": pages.to(dtype),
        "blocks": blocks.view(len(LENGTHS), per_request),
        "starts": torch.zeros(len(LENGTHS), dtype=torch.int64),
        "stops": torch.tensor(LENGTHS),
        "key_size": sizes[0],
    }


def one_by_one(
    query: torch.Tensor,
    pages: torch.Tensor,
    blocks: torch.Tensor,
    starts: torch.Tensor,
    stops: torch.Tensor,
    key_size: int,
    **options: Any,
) -> torch.Tensor:
    found = []
    for i, (start, stop) in enumerate(zip(starts.tolist(), stops.tolist(), strict=True)):
        own = pages[blocks[i].long()].transpose(0, 1).flatten(1, 2)[None, :, start:stop]
        key, value = own[..., :key_size].contiguous(), own[..., key_size:].contiguous()
        one = functional.scaled_dot_product_attention(query[i : i + 1], key, value, **options)
        found.append(one.transpose(1, 2))
    return torch.cat(found)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(8, 8), (8, 2), (6, 1)])
@pytest.mark.parametrize("sizes", [(64, 64), (128, 128), (80, 80), (24, 16)], ids=str)
@pytest.mark.parametrize("scale", [None, 0.25])
def test_bits(
    dtype: torch.dtype, num_heads: int, num_kv_heads: int, sizes: tuple[int, int], scale: float
) -> None:
    given = arguments(dtype, num_heads, num_kv_heads, sizes)
    given |= {"scale": scale, "enable_gqa": num_heads > num_kv_heads}
    assert torch.equal(paged_sdpa(**given), one_by_one(**given))


def takes_order() -> bool:
    """Whether this is a CPU whose order the kernel of `in_one` has."""
    given = arguments(torch.bfloat16)
    if not has_token_attention(given["query"], given["pages"]):
        return False
    return all(order_of(dtype, 64) for dtype in DTYPES)


def order_of(dtype: torch.dtype, size: int) -> dict[str, Any] | None:
    """Return the argument of that name, if the kernel has the bits of PyTorch's function."""
    orders = token_orders(size) if dtype == torch.float32 else [None]
    heads = Heads(8, 2, size, 2 * size, dtype, enable_gqa=True)
    return next(({"order": order} for order in orders if has_the_order(heads, order)), None)


@pytest.mark.skipif(not takes_order(), reason="MKL has another order here: see hf_layers")
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(8, 8), (8, 2), (6, 1), (9, 3), (7, 7)])
@pytest.mark.parametrize("size", [16, 32, 64, 80, 128, 256])
@pytest.mark.parametrize("scale", [None, 0.25, 1.0])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bits_in_one(
    num_heads: int, num_kv_heads: int, size: int, scale: float | None, dtype: torch.dtype
) -> None:
    """Of requests of each length up to two blocks of keys, some with a window."""
    order = order_of(dtype, size)
    assert order is not None
    given = arguments(dtype, num_heads, num_kv_heads, (size, size))
    generator = torch.Generator().manual_seed(1)
    stops = torch.cat((torch.arange(1, 520, 3), torch.tensor([1023, 1024, 1025, 1200])))
    num_blocks, per_request = given["pages"].shape[0], given["blocks"].shape[1]
    shape = (len(stops), num_heads, 1, size)
    given |= {
        "query": (3 * torch.randn(shape, generator=generator)).to(dtype),
        "blocks": torch.randint(num_blocks, (len(stops), per_request), generator=generator).int(),
        "stops": stops,
        "starts": (stops - 40).clamp_min(0) * (torch.arange(len(stops)) % 4 == 0),
        "scale": scale,
        "enable_gqa": num_heads > num_kv_heads,
    }
    assert torch.equal(paged_sdpa(**given, **order, in_one=True), one_by_one(**given))


@pytest.mark.skipif(not takes_order(), reason="MKL has another order here: see hf_layers")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan"), 3e38], ids=str)
@pytest.mark.parametrize("column", [0, 64], ids=["a key", "a value"])
def test_extreme_numbers_in_one(value: float, column: int, dtype: torch.dtype) -> None:
    given = arguments(dtype) | {"enable_gqa": True}
    given["pages"][given["blocks"][:, 0].long(), :, 0, column] = value
    order = order_of(dtype, 64)
    assert order is not None
    found = paged_sdpa(**given, **order, in_one=True)
    assert torch.equal(found.nan_to_num(7), one_by_one(**given).nan_to_num(7))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"dtype": torch.float64}, "query must have dtype bfloat16 or float16, but has"),
        ({"sizes": (24, 24)}, "of the same multiple of 16 columns"),
        ({"num_heads": 6, "num_kv_heads": 4}, "query must have a multiple of the 4 heads of pages"),
    ],
    ids=["dtype", "columns", "heads"],
)
def test_what_in_one_cannot_be(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(RuntimeError, match=sentence):
        paged_sdpa(**arguments(**{"dtype": torch.bfloat16, **changes}), in_one=True)


@pytest.mark.parametrize(
    ("order", "sentence"),
    [
        (None, "in_one takes an order in float32"),
        (torch.zeros(0, 5, dtype=torch.int32), "order ends before that of all outputs"),
    ],
    ids=["none", "empty"],
)
def test_orders_that_in_one_cannot_take(order: torch.Tensor | None, sentence: str) -> None:
    given = arguments(torch.float32)
    if not has_token_attention(given["query"], given["pages"]):
        sentence = "this CPU has no instructions for in_one"
    with pytest.raises(RuntimeError, match=sentence):
        paged_sdpa(**given, in_one=True, order=order)


def test_windows() -> None:
    given = arguments(torch.bfloat16, num_kv_heads=8)
    given["starts"] = (given["stops"] - 40).clamp_min(0)
    assert torch.equal(paged_sdpa(**given), one_by_one(**given))


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (1, 0, 2, 3), (2, 1, 0, 3)], ids=str)
def test_pages_need_not_be_contiguous(order: tuple[int, ...]) -> None:
    """vLLM lays a cache out in its own way."""
    given = arguments(torch.float32, num_kv_heads=8)
    expected = paged_sdpa(**given)
    given["pages"] = given["pages"].permute(order).contiguous().permute(order)
    assert torch.equal(paged_sdpa(**given), expected)


def test_no_requests() -> None:
    given = arguments(torch.float32)
    for name in ("query", "blocks", "starts", "stops"):
        given[name] = given[name][:0]
    assert paged_sdpa(**given).shape == (0, 1, 8, 64)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_heads_share_threads_as_in_pytorch(dtype: torch.dtype, threads: int) -> None:
    given = arguments(dtype)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        expected = one_by_one(**given, enable_gqa=True)
        assert torch.equal(paged_sdpa(**given, enable_gqa=True), expected)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_thread_for_each_request_shares_no_sums(threads: int) -> None:
    given = arguments(torch.bfloat16, num_kv_heads=8)
    expected = one_by_one(**given)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert torch.equal(paged_sdpa(**given, thread_per_request=True), expected)
    finally:
        torch.set_num_threads(before)


def changed(name: str, index: int, value: int) -> Callable[[dict[str, Any]], None]:
    def change(given: dict[str, Any]) -> None:
        given[name].view(-1)[index] = value

    return change


def replaced(name: str, make: Callable[[Any], Any]) -> Callable[[dict[str, Any]], None]:
    def change(given: dict[str, Any]) -> None:
        given[name] = make(given[name])

    return change


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (replaced("query", lambda q: q[0]), r"query must have 4 dimension\(s\), but has 3"),
        (replaced("query", lambda q: q.expand(-1, -1, 3, -1)), "query must have 1 token a request"),
        (replaced("query", lambda q: q[..., :9]), "query must have heads of key_size 64, but has"),
        (replaced("key_size", lambda _: 128), "query must have heads of key_size 128"),
        (replaced("pages", lambda p: p.double()), "pages must have dtype float32"),
        (replaced("pages", lambda p: p[..., :64]), "key_size must be less than the 64 columns"),
        (replaced("pages", lambda p: torch.cat([p, p], -1)[..., ::2]), "must be contiguous"),
        (replaced("blocks", lambda b: b.long()), "blocks must have dtype int32, but has int64"),
        (replaced("blocks", lambda b: b[1:]), "blocks must have one entry for each of the 8"),
        (replaced("starts", lambda s: s.int()), "starts must have dtype int64, but has int32"),
        (replaced("stops", lambda s: s[:-1]), "stops must have one entry for each of the 8"),
        (changed("stops", 3, 0), r"starts\[3\] and stops\[3\] must be a range within the 1200"),
        (changed("starts", 0, -1), r"starts\[0\] and stops\[0\] must be a range"),
        (changed("stops", 7, 1201), r"are 0 and 1201"),
        (changed("blocks", 0, 600), r"blocks\[0, 0\] is 600, but pages has 600 blocks"),
        (changed("blocks", 75, -1), r"blocks\[1, 0\] is -1"),
    ],
)
def test_argument_errors(change: Callable[[dict[str, Any]], None], sentence: str) -> None:
    given = arguments(torch.float32)
    change(given)
    with pytest.raises(RuntimeError, match=f"^paged_sdpa: .*{sentence}"):
        paged_sdpa(**given)
