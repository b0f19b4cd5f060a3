"""The tables of what was measured."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

from benchmarks.gpu import (
    report,
    table,
)
from benchmarks.gpu.results import Results
from tests.benchmarks.gpu.conftest import done


def rows_of(table: Table) -> list[list[str]]:
    console = Console(width=400)
    columns = [[console.render_str(str(cell)).plain for cell in column.cells] for column in
               table.columns]  # fmt: skip
    return [list(row) for row in zip(*columns, strict=True)]


PLAIN = {"1": 100.0, "8": 700.0, "64": 4000.0, "prompt": 50000.0, "start": 31.0}


OUTCOMES = {
    one.name: one
    for one in (
        done("operations", {"equal": 5, "of": 9, "differing": ["[a/b]", "b", "c", "d"]}),
        done("self-check", None, "RuntimeError: size [int8], [/root/x.py]"),
        done("memcheck", {"equal": 3, "of": 4, "differing": ["x"]}, "it was ended after 9 seconds"),
        done("self-check, mma", {"equal": 3, "of": 3, "differing": [], "during": "norms"},
             "it was ended after 60 seconds"),
        done("products, 1B", {"qkv, 1": {"portable": 3.0, "torch": 2.0},
                              "qkv, 8": {"failure": "RuntimeError: no"}}, "ended"),
        done("model, 1B", {"gigabytes": 2.5}),
        done("engine, 1B, plain", PLAIN),
        done("engine, 1B, exact", {"1": 50.0, "8": 70.0, "start": 9.0}, "it was ended after 9 s"),
        done("server, 1B, plain", None, "it was ended after 300 seconds"),
        done("server, 1B, exact", PLAIN),
    )
}  # fmt: skip


NOT_RUN = "not run: call again, with more MINUTES if it does not fit"


def test_the_tables_say_what_differs_and_what_was_not_run() -> None:
    names = [*OUTCOMES, "logits: engine, float16", "products, 8B", "server, 1B, hf_compat"]
    bits, kernels, answers = report.tables(names, OUTCOMES.get)
    assert rows_of(bits) == [
        ["operations", "5", "9", "[a/b]; b; c and 1 more", "1.0"],
        ["self-check", "-", "-", "RuntimeError: size [int8], [/root/x.py]", "-"],
        ["memcheck", "3", "4", "x; it was ended after 9 seconds", "1.0"],
        ["self-check, mma", "3", "3", "it was ended after 60 seconds; during norms", "1.0"],
        ["logits: engine, float16", "-", "-", NOT_RUN, "-"],
    ]
    assert rows_of(kernels) == [
        ["products, 1B", "qkv, 1", "3.0", "2.0", "1.50"],
        ["products, 1B", "qkv, 8", "-", "-", "RuntimeError: no"],
        ["products, 1B", "ended", "-", "-", "-"],
        ["products, 8B", NOT_RUN, "-", "-", "-"],
    ]
    assert rows_of(answers) == [
        ["model, 1B", *["-"] * 4, "1.0", ""],
        ["engine, 1B, plain", "100 (1.00)", "700 (1.00)", "4,000 (1.00)", "50,000 (1.00)", "31.0",
         ""],
        ["engine, 1B, exact", "50 (0.50)", "70 (0.10)", "-", "-", "9.0", "it was ended after 9 s"],
        ["server, 1B, plain", *["-"] * 5, "it was ended after 300 seconds"],
        ["server, 1B, exact", "100", "700", "4,000", "50,000", "31.0", ""],
        ["server, 1B, hf_compat", *["-"] * 5, NOT_RUN],
    ]  # fmt: skip


def test_the_page_has_the_table_of_what_was_measured() -> None:
    """As `python -m benchmarks.gpu.table` writes it."""
    text = table.PAGE.read_text()
    assert table.page(text) == text


def test_the_table_has_the_date_and_the_gpu_of_each_figure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(table, "MEASURED", tmp_path)
    empty = [line.split(" | ")[-1] for line in table.table().splitlines()[2:]]
    assert set(empty) == {" |"}
    layer = ("qkv", "o", "gate_up", "down")
    times = {f"{matrix}, 1": {"portable": 3.0, "torch": 2.0} for matrix in layer}
    Results({"device": "cpu"}, tmp_path).add(done("self-check", {"equal": 1, "of": 1}))
    results = Results({"device": "NVIDIA H100|80"}, tmp_path)
    for one in (
        done("self-check", {"equal": 7, "of": 9, "differing": ["a", "b"]}),
        done("real shapes, 8B", {"equal": 10, "of": 10}, "it was ended after 150 seconds"),
        done("memcheck", {"equal": 40, "of": 40, "errors": 7}),
        done("racecheck", None, "it was ended by SIGSEGV"),
        done("products, 8B", times, "it was ended after 150 seconds"),
        done("engine, 8B, plain", {"1": 100.0, "8": 400.0}),
        done("engine, 8B, deterministic", {"1": 80.0}),
    ):
        results.add(one)
    lines = table.table().splitlines()
    assert lines[0].endswith("| measured, NVIDIA H100\\|80 |")
    figures = {line.split(" | ")[0]: line.split(" | ")[-1] for line in lines[2:]}
    assert {what: figure for what, figure in figures.items() if figure != " |"} == {
        "| bits: the start-up check": "7 of 9 (2026-11-23) |",
        "| bits: an 8B Llama's shapes, beside the CPU": (
            "10 of 10 (2026-11-23; a part: it was ended after 150 seconds) |"
        ),
        "| compute-sanitizer memcheck of the check": "40 of 40, 7 errors (2026-11-23) |",
        "| time of a layer's products / cuBLAS, 1 row": "1.50 (2026-11-23; a part: it was ended "
        "after 150 seconds) |",
        "| time of an engine / the plain one, 1 answer at once": "1.25 (2026-11-23) |",
    }
