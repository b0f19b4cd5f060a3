"""The overlay is a house of floors: no import runs up, none in a circle, and patches use hooks."""

from __future__ import annotations

import ast
from collections import Counter
from graphlib import TopologicalSorter

import pytest

from tests.engines import ROOT
from tests.structure.imports import imports_of, modules

pytestmark = pytest.mark.fast

Floors = tuple[set[str], ...]
"""From the roof down; what stands beside each other does not import each other."""

FLOORS: Floors = (
    {"hooks"},
    {"parity", "bulk", "receipts"},
    {"hf_model", "twin"},
    {"hf_compat", "deterministic"},
    {"hf_layers"},
    {"fork", "fork_kernels"},
)

FLOORS_WITHIN: dict[str, Floors] = {
    "hf_compat": (
        {"frontend"},
        {"logits", "server", "answers"},
        {"rows", "receipts", "texts", "engine_config"},
        {"call", "grammars", "failures"},
    ),
    "hf_layers": (
        {"report"},
        {"strict", "missing_kernels"},
        {"inexact_settings"},
        {"replacement", "definition"},
        {"decoder"},
        {"layers", "attention"},
        {"products"},
        {"step_rows", "engine"},
        {"models", "ordered_logprobs"},
    ),
    "fork": (
        {"requests"},
        {"weight_transfer"},
        {"live_weights"},
        {"startup"},
        {"processes", "checked_adapters", "speculation"},
        {"flags", "models", "on_device"},
        {"nearest_name", "digests", "sentence_command", "source_kernels", "xformers_backend"},
    ),
    "fork_kernels": (
        {"portable", "torch_order", "logits", "dependent_launches"},
        {"operators"},
        {"library", "layer_weights"},
    ),
}
"""Of the rooms that have shelves; a file beside shelves is one of its own."""

MOST_FILES = 25
"""Side by side in a folder: more of them have an order that nobody sees."""


def floor(name: str, floors: Floors) -> int:
    return next(i for i, names in enumerate(floors) if name in names)


def room(module: str) -> str:
    return module.split(".")[1]


def shelf(module: str) -> str | None:
    """The shelf of a module's room; None of the room's own module."""
    parts = module.split(".")
    return parts[2] if len(parts) > 2 else None


def test_every_import_runs_down() -> None:
    known = modules()
    up = [
        f"{one} imports {other}"
        for one in known
        for other in imports_of(one, known)
        if room(one) != room(other) and floor(room(one), FLOORS) >= floor(room(other), FLOORS)
    ]
    assert not up, "\n".join(up)


@pytest.mark.parametrize("within", FLOORS_WITHIN)
def test_every_import_of_a_shelf_runs_down(within: str) -> None:
    floors, known = FLOORS_WITHIN[within], modules()
    shelves = {one: of for one in known if room(one) == within and (of := shelf(one))}
    assert set().union(*floors) == {*shelves.values()}
    up = [
        f"{one} imports {other}"
        for one, of in shelves.items()
        for other in imports_of(one, known) & shelves.keys()
        if of != shelves[other] and floor(of, floors) >= floor(shelves[other], floors)
    ]
    assert not up, "\n".join(up)


@pytest.mark.parametrize("top", ["vllm", "csrc"])
def test_no_folder_has_too_many_files(top: str) -> None:
    counts = Counter(path.parent for path in (ROOT / top).rglob("*.*") if "__" not in str(path))
    assert counts
    assert not {folder: count for folder, count in counts.items() if count > MOST_FILES}


def test_no_files_import_each_other_in_a_circle() -> None:
    known = modules()
    # A package's own module is part of each import below it, so it must import nothing back.
    TopologicalSorter({one: imports_of(one, known) for one in known}).prepare()


def test_patches_import_hooks_and_nothing_else() -> None:
    ours = {"vllm"} | set(modules())
    inserted = [
        line[1:].strip()
        for patch in sorted((ROOT / "patches").rglob("*.patch"))
        for line in patch.read_text().splitlines()
        if line.startswith("+") and not line.startswith("+++")
    ]
    imports = [line for line in inserted if line.startswith(("from ", "import "))]
    assert len(imports) > 20
    targets = [target for line in imports for target in _targets(line)]
    astray = [one for one in targets if one in ours and not one.startswith("vllm.hooks.")]
    assert not astray
    hooks = {name for name in ours if name.startswith("vllm.hooks.")}
    assert hooks == {one for one in targets if one in hooks}


def _targets(line: str) -> list[str]:
    (node,) = ast.parse(line).body
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    assert isinstance(node, ast.ImportFrom)
    assert node.module is not None
    return [node.module]
