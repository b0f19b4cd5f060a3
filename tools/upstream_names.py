"""Lists the names of upstream's that the overlay imports, and which of them another wheel lacks.

    python -m tools.upstream_names [--check WHEEL]

Patches are carried to another release by a merge that finds conflicts; what the overlay's own
modules use of upstream would show only when it is imported.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

ROOT = Path(__file__).parents[1]


def used_names() -> dict[str, set[str]]:
    """Return the names that the overlay imports, by upstream's module."""
    paths = sorted((ROOT / "vllm").rglob("*.py"))
    own = {module_name(path.relative_to(ROOT)) for path in paths}
    found: defaultdict[str, set[str]] = defaultdict(set)
    for path in paths:
        for module, name in _imports(ast.parse(path.read_text())):
            if module not in own and f"{module}.{name}" not in own:
                found[module].add(name)
    return dict(found)


def module_name(path: Path) -> str:
    """Return the name of a module by its path in the repository; packages have their own."""
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield module and name of each import from vLLM."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not node.level and node.module:
            if node.module.split(".")[0] == "vllm":
                yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                parent, _, name = alias.name.rpartition(".")
                if alias.name.startswith("vllm."):
                    yield parent, name


def missing_names(wheel: Path) -> list[str]:
    """Return the names that a wheel of vLLM does not define, each as ``module.name``."""
    with ZipFile(wheel) as archive:
        sources = {
            module_name(Path(name)): archive.read(name).decode()
            for name in archive.namelist()
            if name.startswith("vllm/") and name.endswith(".py")
        }
    return [
        f"{module}.{name}"
        for module, names in sorted(used_names().items())
        for name in sorted(names - set(_defined(module, sources)))
        if f"{module}.{name}" not in sources
    ]


def _defined(module: str, sources: dict[str, str]) -> Iterator[str]:
    """Yield all names that a module binds, wherever, and those that it promises as strings."""
    for node in ast.walk(ast.parse(sources.get(module, ""))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
            yield from _defined(".".join([module, node.module or ""]), sources)
        elif isinstance(node, ast.alias):
            yield (node.asname or node.name).split(".")[0]
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value  # of tables for lazy imports


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", type=Path, metavar="WHEEL")
    options = parser.parse_args()
    if options.check is None:
        for module, names in sorted(used_names().items()):
            print(f"{module}: {', '.join(sorted(names))}")
        return
    missing = missing_names(options.check)
    print("\n".join(missing) or "nothing is missing")
    sys.exit(bool(missing))


if __name__ == "__main__":
    main()
