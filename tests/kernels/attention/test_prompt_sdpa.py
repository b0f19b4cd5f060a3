"""``prompt_sdpa`` has the bits of PyTorch's function for each prompt alone."""

from typing import Any

import pytest
import torch
from torch.nn import functional

from vllm.fork_kernels import prompt_sdpa

BLOCK_SIZE = 16
# First row of the queries, their end, the request, the tokens up to the last query.
SPANS = ((0, 2, 0, 2), (2, 42, 1, 40), (43, 60, 3, 17), (60, 75, 2, 130), (75, 675, 0, 600))
ROWS = 676


def arguments(
    dtype: torch.dtype, num_heads: int = 8, num_kv_heads: int = 2, sizes: tuple[int, int] = (64, 64)
) -> dict[str, Any]:
    """Random queries, and keys and values in blocks that are in no order."""
    generator = torch.Generator().manual_seed(0)
    per_request = -(-600 // BLOCK_SIZE)
    num_blocks = 4 * per_request
    pages = torch.randn(num_blocks, num_kv_heads, BLOCK_SIZE, sum(sizes), generator=generator)
    blocks = torch.randperm(num_blocks, generator=generator).to(torch.int32)
    query = torch.randn(ROWS, num_heads, sizes[0], generator=generator)
    return {
        "query": query.to(dtype),
        "pages": pages.to(dtype),
        "blocks": blocks.view(4, per_request),
        "spans": torch.tensor(SPANS),
        "result": torch.full((ROWS, num_heads, sizes[1]), torch.nan, dtype=dtype),
        "key_size": sizes[0],
    }


def one_by_one(given: dict[str, Any], **options: Any) -> torch.Tensor:
    """Queries that follow others lie behind as many, whatever these are."""
    result = given["result"].clone()
    for begin, end, request, length in SPANS:
        pages = given["pages"][given["blocks"][request].long()]
        own = pages.transpose(0, 1).flatten(1, 2)[None, :, :length]
        key, value = own.split((given["key_size"], own.shape[-1] - given["key_size"]), dim=-1)
        earlier = torch.ones(length - (end - begin), *given["query"].shape[1:]).to(key.dtype)
        query = torch.cat((earlier, given["query"][begin:end])).transpose(0, 1)[None].contiguous()
        attended = functional.scaled_dot_product_attention(
            query, key.contiguous(), value.contiguous(), is_causal=True, **options
        )
        result[begin:end] = attended[0].transpose(0, 1)[begin - end :]
    return result


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(8, 8), (8, 2), (6, 1)])
@pytest.mark.parametrize("sizes", [(64, 64), (128, 128), (80, 80)], ids=str)
@pytest.mark.parametrize("scale", [None, 0.25])
def test_bits(
    dtype: torch.dtype, num_heads: int, num_kv_heads: int, sizes: tuple[int, int], scale: float
) -> None:
    given = arguments(dtype, num_heads, num_kv_heads, sizes)
    options: dict[str, Any] = {"scale": scale, "enable_gqa": num_heads > num_kv_heads}
    expected = one_by_one(given, **options)
    prompt_sdpa(**given, **options)
    assert torch.equal(given["result"].isnan(), expected.isnan())  # rows that are in no span
    assert torch.equal(given["result"].nan_to_num(), expected.nan_to_num())
    assert given["result"][42].isnan().all()


def test_queries_within_larger_rows() -> None:
    """As of a projection that gives queries, keys and values."""
    given = arguments(torch.bfloat16)
    expected = one_by_one(given, enable_gqa=True)
    wide = torch.cat((given["query"], given["query"]), dim=1)
    prompt_sdpa(**given | {"query": wide[:, :8]}, enable_gqa=True)
    assert torch.equal(given["result"].nan_to_num(), expected.nan_to_num())


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"spans": torch.tensor([[0, 677, 0, 700]])}, r"spans\[0\] is of rows 0 to 677"),
        ({"spans": torch.tensor([[0, 5, 4, 5]])}, r"row 4 of blocks, which there are not"),
        ({"spans": torch.tensor([[0, 5, 0, 4]])}, r"a text of 4 tokens"),
        ({"spans": torch.tensor([[5, 5, 0, 9]])}, r"rows 5 to 5"),
        ({"spans": torch.tensor([[0, 5, 0, 5, 1]])}, r"spans must have 4 columns, but has 5"),
        ({"spans": torch.tensor([[0, 5, 0, 5000]])}, r"a text of 5000 tokens"),
        ({"blocks": torch.full((4, 38), 500, dtype=torch.int32)}, r"blocks\[0, 0\] is 500"),
        ({"key_size": 32}, r"key_size 32"),
        ({"query": torch.zeros(676, 8, 64)}, r"pages must have dtype float32"),
        ({"result": torch.zeros(676, 8, 32).bfloat16()}, r"result must have the heads"),
    ],
)
def test_refusals(changes: dict[str, Any], sentence: str) -> None:
    given = arguments(torch.bfloat16) | changes
    before = given["result"].clone()
    with pytest.raises(RuntimeError, match=sentence):
        prompt_sdpa(**given)
    assert torch.equal(given["result"].nan_to_num(), before.nan_to_num())
