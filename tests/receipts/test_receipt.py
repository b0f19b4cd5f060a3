"""The form of receipts, held to an implementation that was written from ``docs/receipts.md``."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import struct
from typing import Any

import pytest
import torch

from tests.engines import ROOT
from vllm.fork.digests import digest
from vllm.receipts.file import check_form, claims_of
from vllm.receipts.receipt import chain_of, make_receipt
from vllm.receipts.weights import digest_of_names, tensor_digest

PAGE = (ROOT / "docs" / "receipts.md").read_text()
LOGITS = [[0.5, -1.0, 2.25, 0.0], [1.5, 3.0, -0.25, 8.0]]


def vector() -> dict[str, Any]:
    (text,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    return json.loads(text)


def h(size: int, *data: bytes) -> bytes:
    return hashlib.blake2b(b"".join(data), digest_size=size, person=b"vllm-receipt-1").digest()


def as_the_page_says(fields: dict[str, Any], tokens: list[int], rows: list[bytes]) -> Any:
    """Return seals and chain of a receipt."""
    size = len(rows[0])
    names = ("model", "flags", "prompt", "parameters")
    seals = [
        h(8, json.dumps(fields[name], sort_keys=True, separators=(",", ":")).encode())
        for name in names
    ]
    link, chain = h(size, *seals), b""
    for token, row in zip(tokens, rows, strict=True):
        link = h(size, link, struct.pack("<I", token), row)
        chain += link
    hexadecimal = {name: one.hex() for name, one in zip(names, seals, strict=True)}
    return hexadecimal, base64.b64encode(chain).decode()


@pytest.mark.parametrize("size", [8, 16, 32, 64])
def test_the_vector_of_the_page(size: int) -> None:
    receipt = vector()
    rows = [h(size, struct.pack("<4f", *row)) for row in LOGITS]
    assert rows == [digest(struct.pack("<4f", *row), size) for row in LOGITS]
    seals, chain = as_the_page_says(receipt, receipt["output"], rows)
    if size == 8:
        assert (seals, chain) == (receipt["seals"], receipt["logits"])
    made = make_receipt(
        {name: receipt[name] for name in receipt if name not in ("seals", "output", "logits")},
        receipt["output"],
        rows,
        receipt["finish"],
    )
    assert made == {**receipt, "seals": seals, "logits": chain}
    assert len(chain_of(made)) == 2
    check_form(made)


def test_digests_of_weights() -> None:
    tensors = {
        "b": torch.arange(6, dtype=torch.bfloat16).reshape(2, 3),
        "a": torch.tensor(0.5),
        "c": torch.arange(12, dtype=torch.int8).reshape(3, 4).T,
    }
    names = {torch.bfloat16: "bfloat16", torch.float32: "float32", torch.int8: "int8"}
    expected = []
    for name, tensor in sorted(tensors.items()):
        head = json.dumps([names[tensor.dtype], list(tensor.shape)]).encode()
        content = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        expected.append([name, h(16, head, h(16, content)).hex()])
    digests = {name: tensor_digest(tensor) for name, tensor in tensors.items()}
    assert sorted(map(list, digests.items())) == expected
    text = json.dumps(expected, separators=(",", ":")).encode()
    assert digest_of_names(digests) == h(16, text).hex()


def test_every_bit_of_a_tensor_counts() -> None:
    tensor = torch.randn(5, 7, generator=torch.Generator().manual_seed(0)).bfloat16()
    before, bits = tensor_digest(tensor), tensor.view(torch.int16)
    for i in range(35):
        bits.view(-1)[i] ^= 1
        assert tensor_digest(tensor) != before
        bits.view(-1)[i] ^= 1
    assert tensor_digest(tensor) == before
    assert tensor_digest(tensor.reshape(7, 5)) != before


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "it is not JSON"),
        ('"text"', "it is no receipt"),
        ("[[1]]", "it is no receipt"),
        ('{"choices": [{"text": "a"}]}', "it has no receipt"),
        ('{"choices": [7]}', "it has no receipt"),
        ('{"choices": [{"receipt": {"version": 1}}]}', "it is no receipt"),
        ('{"response": {"body": {"choices": [{"receipt": []}]}}}', "it is no receipt"),
        ('{"response": {"body": null}}', "it is no receipt"),
        ("[" * 100_000, "it is not JSON"),
    ],
)
def test_lines_without_a_receipt(tmp_path: Any, line: str, problem: str) -> None:
    file = tmp_path / "answers.jsonl"
    file.write_text("\n" + line + "\n")
    (claim,) = claims_of(file)
    assert claim.place.startswith("line 2")
    assert claim.receipt is None
    assert problem in claim.problem


def test_rows_with_an_error_claim_nothing(tmp_path: Any) -> None:
    file = tmp_path / "answers.jsonl"
    file.write_text('{"id": "bulk-0", "response": {"body": {}}, "error": {"message": "no"}}\n')
    (claim,) = claims_of(file)
    assert not claim.has_answer
    file.write_text('{"response": {"body": {"choices": [{"text": "a"}]}}, "error": {}}\n')
    (claim,) = claims_of(file)
    assert claim.has_answer


def test_a_pipe_is_not_read_twice(tmp_path: Any) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="is no regular file"):
        next(claims_of(tmp_path / "pipe"))


def test_texts_beside_a_receipt_count_all(tmp_path: Any) -> None:
    file = tmp_path / "answers.jsonl"
    choices = [
        {"receipt": 1, "text": "a", "message": {"content": "b"}},
        {"receipt": 1, "text": ["a"], "message": {}},
        {"receipt": 1, "text": "a", "message": "b"},
        {"receipt": 1, "text": "a", "message": {"tool_calls": [{}], "content": "b"}},
    ]
    file.write_text(json.dumps({"choices": choices}))
    found = [(one.texts, one.is_parsed) for one in claims_of(file)]
    assert found == [
        (("a", "b"), False), ((["a"],), False), (("a", "b"), False), (("a",), True)
    ]  # fmt: skip
