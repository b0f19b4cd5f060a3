"""The overlay is a house of floors: no import runs up, none in a circle, and patches use hooks."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter

from tests.engines import ROOT
from tests.structure.imports import imports_of, modules

FLOORS = (
    {"hooks"},
    {"parity", "parity_report", "bulk", "receipts"},
    {"hf_exact", "twin"},
    {"hf_compat", "deterministic"},
    {"hf_numerics"},
    {"fork", "fork_ops", "v1"},
)
"""From the roof down; what stands beside each other does not import each other."""


def floor(module: str) -> int:
    return next(i for i, rooms in enumerate(FLOORS) if room(module) in rooms)


def room(module: str) -> str:
    return module.split(".")[1]


def test_every_import_runs_down() -> None:
    known = modules()
    up = [
        f"{one} imports {other}"
        for one in known
        for other in imports_of(one, known)
        if room(one) != room(other) and floor(one) >= floor(other)
    ]
    assert not up, "\n".join(up)


def test_no_files_import_each_other_in_a_circle() -> None:
    known = modules()
    # A package's own module is part of each import below it, so it must import nothing back.
    TopologicalSorter({one: imports_of(one, known) for one in known}).prepare()


def test_patches_import_hooks_and_nothing_else() -> None:
    ours = {"vllm"} | set(modules())
    inserted = [
        line[1:].strip()
        for patch in sorted((ROOT / "patches").glob("*.patch"))
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
