"""What a file of requests holds, row by row: JSON lines, Parquet, or a Hugging Face dataset."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

_JSON = (".jsonl", ".ndjson", ".json")
_AT_ONCE = 1 << 20
_ROWS_AT_ONCE = 256


@dataclass(frozen=True)
class Row:
    """A row, read or not.

    Attributes:
        index: from zero; blank lines have none.
        fields: by name; None if it could not be read.
        problem: why not, as a sentence.
        crc: of its bytes, CRC-32.
    """

    index: int
    fields: dict[str, Any] | None = None
    problem: str = ""
    crc: int = 0


@dataclass(frozen=True)
class Survey:
    """What is known of an input once all its bytes have been read.

    Attributes:
        sha256: of all bytes, in hexadecimal digits.
        rows: how many it has.
    """

    sha256: str
    rows: int


class Source(Protocol):
    """An input, which is read as often as asked, and never held as a whole."""

    def survey(self) -> Survey:
        """Read all bytes."""

    def rows(self, is_done: Callable[[int], bool]) -> Iterator[Row]:
        """Yield the rows that are not done, in order."""


def source_of(path: Path) -> Source:
    """Return what reads an input.

    Raises:
        ValueError: there is none, or of a kind that is not read; says which are.
    """
    if not path.exists():
        raise ValueError(f"There is no input {path}: name a file, or a folder of a dataset.")
    if path.is_dir():
        return _Dataset(path)
    if not path.is_file():
        raise ValueError(f"{path} cannot be read more than once: write its rows into a file first.")
    if path.suffix == ".parquet":
        return _Parquet(path)
    if path.suffix in _JSON:
        return _Lines(path)
    raise ValueError(
        f"{path} is no kind of input that is known by its name: JSON lines ({', '.join(_JSON)}), "
        ".parquet, or the folder of a dataset that save_to_disk() has written."
    )


class _Lines:
    """JSON lines: an object in each."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def survey(self) -> Survey:
        digest, rows = hashlib.sha256(), 0
        with self._path.open("rb") as file:
            for line in file:
                digest.update(line)
                rows += not line.isspace()
        return Survey(digest.hexdigest(), rows)

    def rows(self, is_done: Callable[[int], bool]) -> Iterator[Row]:
        index = 0
        with self._path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.isspace():
                    continue
                if not is_done(index):
                    fields, problem = _fields_of_line(line)
                    problem = problem and f"Line {number} is {problem}."
                    yield Row(index, fields, problem, zlib.crc32(line))
                index += 1


def _fields_of_line(line: bytes) -> tuple[dict[str, Any] | None, str]:
    """Return the fields, or None and what the line is instead of an object."""
    try:
        fields = json.loads(line.decode("utf-8-sig").rstrip(), parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        return None, f"no text in UTF-8: {error.reason}"
    except json.JSONDecodeError as error:
        return None, f"no JSON: {error.msg} (column {error.colno})"
    except (ValueError, RecursionError) as error:
        return None, f"no JSON: {error}"
    if not isinstance(fields, dict):
        return None, "no JSON object: write one object in a line"
    return fields, ""


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


class _Parquet:
    """A Parquet file: a column for each field. A null is a field that the row does not have."""

    def __init__(self, path: Path) -> None:
        self._path = path
        _require("pyarrow", "Parquet files")

    def survey(self) -> Survey:
        import pyarrow.parquet as parquet

        rows = parquet.ParquetFile(self._path).metadata.num_rows
        return Survey(_digest_of([self._path]), rows)

    def rows(self, is_done: Callable[[int], bool]) -> Iterator[Row]:
        import pyarrow.parquet as parquet

        index = 0
        with parquet.ParquetFile(self._path) as file:
            for batch in file.iter_batches(batch_size=_ROWS_AT_ONCE):
                for i in range(batch.num_rows):
                    if not is_done(index):
                        yield _row_of_table(index, batch.slice(i, 1).to_pylist()[0])
                    index += 1


class _Dataset:
    """A dataset on disk, as ``Dataset.save_to_disk`` writes it; it is mapped, not loaded."""

    def __init__(self, path: Path) -> None:
        self._path = path
        _require("datasets", "datasets")
        if (path / "dataset_dict.json").exists():
            splits = json.loads((path / "dataset_dict.json").read_text())["splits"]
            raise ValueError(
                f"{path} holds {len(splits)} datasets: name one of them, such as "
                f"{path / splits[0]}."
            )
        if not (path / "state.json").exists():
            raise ValueError(
                f"{path} is no dataset on disk: name a folder that Dataset.save_to_disk() has "
                "written, or a file."
            )

    def survey(self) -> Survey:
        import datasets

        files = sorted(one for one in self._path.rglob("*") if one.is_file())
        return Survey(_digest_of(files), len(datasets.load_from_disk(str(self._path))))

    def rows(self, is_done: Callable[[int], bool]) -> Iterator[Row]:
        import datasets

        dataset = datasets.load_from_disk(str(self._path))
        for index in range(len(dataset)):
            if not is_done(index):
                yield _row_of_table(index, dataset[index])


def _row_of_table(index: int, fields: dict[str, Any]) -> Row:
    return Row(index, without_nulls(fields), crc=zlib.crc32(repr(fields).encode()))


def without_nulls(value: Any) -> Any:
    """Return a value of a table without the fields that are null: all rows share the columns."""
    if isinstance(value, dict):
        return {name: without_nulls(one) for name, one in value.items() if one is not None}
    if isinstance(value, list):
        return [without_nulls(one) for one in value]
    return value


def _digest_of(files: list[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.name.encode() + b"\0")
        with file.open("rb") as stream:
            while chunk := stream.read(_AT_ONCE):
                digest.update(chunk)
    return digest.hexdigest()


def _require(package: str, what: str) -> None:
    """Raise a ``ValueError`` if a package that reads `what` is not installed."""
    from importlib.util import find_spec

    if find_spec(package) is None:
        raise ValueError(
            f"{package} reads {what}, and is not installed: pip install {package}, or write JSON "
            "lines."
        )
