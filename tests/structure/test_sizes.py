"""Files hold one concept, and functions are short."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest

from tests.engines import ROOT

pytestmark = pytest.mark.fast

PYTHON = ("vllm", "distribution", "benchmarks", "examples", "tests", "tools")
MOST_LINES_OF_A_FILE, MOST_LINES_OF_A_FUNCTION, MEDIAN_LINES_OF_A_FUNCTION = 450, 60, 9


def files(*kinds: str) -> Iterator[Path]:
    for folder in (*PYTHON, "csrc"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in kinds:
                yield path


def functions(path: Path) -> Iterator[tuple[str, int]]:
    """Yield each function and its lines; a page of text in it counts as one."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            pages = (one for one in ast.walk(node) if isinstance(one, ast.JoinedStr))
            text = sum(lines(page) - 1 for page in pages)
            yield f"{path.relative_to(ROOT)}: {node.name}", lines(node) - text


def parsed(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_text())
    except SystemError:  # CPython 3.11, while another thread parses, too: its issue 106905
        return ast.parse(path.read_text())


def lines(node: ast.stmt | ast.expr) -> int:
    assert node.end_lineno is not None
    return node.end_lineno - node.lineno + 1


def test_no_file_is_long() -> None:
    sizes = {
        str(path.relative_to(ROOT)): len(path.read_text().splitlines())
        for path in files(".py", ".cpp", ".h", ".cu", ".cuh")
    }
    assert not {name: n for name, n in sizes.items() if n > MOST_LINES_OF_A_FILE}


@pytest.mark.parametrize("folder", PYTHON)
def test_functions_are_short(folder: str) -> None:
    sizes = dict(
        one
        for path in files(".py")
        if path.is_relative_to(ROOT / folder)
        for one in functions(path)
    )
    assert not {name: n for name, n in sizes.items() if n > MOST_LINES_OF_A_FUNCTION}
    if folder == "vllm":
        assert median(sizes.values()) <= MEDIAN_LINES_OF_A_FUNCTION
