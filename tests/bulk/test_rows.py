"""What a row may be, and what its answer looks like."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import datasets
import pyarrow
import pyarrow.parquet as parquet
import pytest

from vllm.bulk.rows import Row, source_of, without_nulls
from vllm.bulk.tasks import Task, answer_to, answer_without_request, task_of


def rows_of(path: Path) -> list[Row]:
    return list(source_of(path).rows(lambda _: False))


def test_json_lines(tmp_path: Path) -> None:
    file = tmp_path / "input.jsonl"
    data = b'\xef\xbb\xbf{"prompt": "\xc3\xa9"}\r\n\n  \n{"prompt": 2}'
    file.write_bytes(data)
    survey = source_of(file).survey()
    assert (survey.rows, survey.sha256) == (2, hashlib.sha256(data).hexdigest())
    found = [(row.index, row.fields) for row in rows_of(file)]
    assert found == [(0, {"prompt": "\u00e9"}), (1, {"prompt": 2})]
    assert [row.index for row in source_of(file).rows(lambda index: index == 0)] == [1]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"{", "Line 2 is no JSON: Expecting property name"),
        (b'{"prompt": "a"', "Line 2 is no JSON: Expecting ',' delimiter (column 15)."),
        (b"[1]", "Line 2 is no JSON object: write one object in a line."),
        (b'{"prompt": "\xff"}', "Line 2 is no text in UTF-8: invalid start byte."),
        (b'{"prompt": "a", "temperature": NaN}', "Line 2 is no JSON: NaN is no number of JSON."),
        (b"[" * 100_000, "Line 2 is no JSON: maximum recursion depth exceeded"),
    ],
)
def test_a_bad_line_is_a_row_with_a_problem(tmp_path: Path, line: bytes, problem: str) -> None:
    file = tmp_path / "input.jsonl"
    file.write_bytes(b'{"prompt": "a"}\n' + line + b'\n{"prompt": "b"}\n')
    first, bad, last = rows_of(file)
    assert [first.fields, bad.fields, last.fields] == [{"prompt": "a"}, None, {"prompt": "b"}]
    assert bad.problem.startswith(problem)
    answer = json.loads(answer_without_request(bad, bad.problem).line)
    assert answer["custom_id"] == "1"
    assert answer["error"]["message"] == bad.problem


def test_parquet(tmp_path: Path) -> None:
    """Lists and structures come as JSON would have them; a null is no field."""
    rows: list[dict[str, Any]] = [
        {"prompt": f"text {i}", "seed": i if i % 2 else None, "bad_words_ids": [[i], [5, 6]]}
        for i in range(1000)
    ]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "input.parquet")
    assert source_of(tmp_path / "input.parquet").survey().rows == 1000
    found = [row.fields for row in rows_of(tmp_path / "input.parquet")]
    assert found == [without_nulls(row) for row in rows]


def test_a_dataset_on_disk(tmp_path: Path) -> None:
    rows = [{"messages": [{"role": "user", "content": str(i)}], "top_k": i} for i in range(50)]
    datasets.Dataset.from_list(rows).save_to_disk(str(tmp_path / "one"))
    datasets.DatasetDict(train=datasets.Dataset.from_list(rows)).save_to_disk(str(tmp_path / "two"))
    assert source_of(tmp_path / "one").survey().rows == 50
    assert [row.fields for row in rows_of(tmp_path / "one")] == rows
    with pytest.raises(ValueError, match=r"two holds 1 datasets: name one of them, such as"):
        source_of(tmp_path / "two")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("none.jsonl", "There is no input .*: name a file"),
        ("pipe.jsonl", "cannot be read more than once"),
        ("text.csv", "is no kind of input that is known by its name: JSON lines"),
        ("folder", "is no dataset on disk"),
    ],
)
def test_inputs_that_are_refused(tmp_path: Path, name: str, sentence: str) -> None:
    (tmp_path / "text.csv").write_text("prompt\n")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe.jsonl")
    with pytest.raises(ValueError, match=sentence):
        source_of(tmp_path / name)


@pytest.mark.parametrize(
    ("fields", "url", "body"),
    [
        ({"prompt": "a", "top_k": 5}, "/v1/completions", {"prompt": "a", "top_k": 5}),
        ({"messages": [], "id": 7}, "/v1/chat/completions", {"messages": []}),
        ({"prompt": "a", "custom_id": None, "id": "b"}, "/v1/completions", {"prompt": "a"}),
        (
            {"custom_id": "x", "method": "POST", "url": "/v1/embeddings", "body": {"input": "a"}},
            "/v1/embeddings",
            {"input": "a"},
        ),
    ],
)
def test_rows_as_requests(fields: dict[str, Any], url: str, body: dict[str, Any]) -> None:
    name = str(fields.get("custom_id") or fields.get("id") or 3)
    assert task_of(Row(3, fields)) == Task(3, name, url, json.dumps(body).encode())


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({}, "A row has a prompt, or messages"),
        ({"prompt": "a", "messages": []}, "A row has a prompt, or messages"),
        ({"url": "/v1/completions"}, "body is no JSON object"),
        ({"url": "/v1/load_lora_adapter", "body": {}}, "url is '/v1/load_lora_adapter': write one"),
        ({"url": ["a"], "body": {}}, r"url is \['a'\]: write one of"),
        ({"url": "/v1/completions", "method": "GET", "body": {}}, "method is 'GET': write POST"),
        ({"url": "/v1/completions", "body": {}, "top_k": 5}, "top_k is no field of a batch's line"),
        ({"prompt": "a", "stream": True}, "stream: a file has no streams"),
        ({"prompt": "a", "temperature": float("inf")}, "The row cannot be written as JSON"),
        ({"prompt": "a", "user": b"x"}, "The row cannot be written as JSON"),
        ({"prompt": "a", "id": True}, "id is True: write a text or a whole number."),
        ({"prompt": "a", "id": [1]}, r"id is \[1\]: write a text or a whole number."),
        ({"prompt": "a", "custom_id": 1.5}, "custom_id is 1.5: write a text"),
    ],
)
def test_rows_that_are_refused(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        task_of(Row(0, fields))


def test_an_answer_does_not_say_when_it_was() -> None:
    def line(created: int) -> str:
        body = {"id": "cmpl-bulk-5", "created": created, "choices": [], "usage": None}
        return answer_to(Task(5, "a", "/v1/completions", b""), 200, body).line

    assert line(1) == line(2)


def test_half_of_a_surrogate_pair_is_written_as_json_has_it() -> None:
    answer = answer_to(Task(0, "\ud800\u00e9", "/v1/completions", b""), 200, {"a": "\u00e9"})
    assert json.loads(answer.line.encode())["custom_id"] == "\ud800\u00e9"


def test_a_refusal_has_an_error_whatever_the_server_said() -> None:
    task = Task(0, "a", "/v1/embeddings", b"")
    for status, body, message in [
        (404, {"detail": "Not Found"}, "This model has no /v1/embeddings."),
        (500, "Internal Server Error", "Internal Server Error"),
    ]:
        answer = answer_to(task, status, body)
        assert answer.is_error
        assert json.loads(answer.line)["error"]["message"] == message
