"""What each module of the overlay imports of the others, read from the sources."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tools.upstream_names import ROOT, module_name


def modules() -> dict[str, Path]:
    """Return the modules of the overlay by name; packages by their own."""
    paths = sorted((ROOT / "vllm").rglob("*.py"))
    return {module_name(path.relative_to(ROOT)): path for path in paths}


def imports_of(name: str, known: dict[str, Path]) -> set[str]:
    """Return the modules of `known` that one of them imports, at its top or when it runs.

    What it imports for type checkers alone is left out: it is not there when the module runs.
    """
    package = name if known[name].name == "__init__.py" else name.rpartition(".")[0]
    found: set[str] = set()
    for node in _running(ast.parse(known[name].read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level:
                base = package.split(".")[: len(package.split(".")) - node.level + 1]
                module = ".".join([*base, *filter(None, [module])])
            names = {f"{module}.{alias.name}" for alias in node.names}
            found |= names if names <= known.keys() else names | {module}
    return (found & known.keys()) - {name}


def _running(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            continue
        yield child
        yield from _running(child)
