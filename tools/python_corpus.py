"""The Python standard library's sources as a corpus of text: the same on every platform."""

from __future__ import annotations

import hashlib
import sys
import sysconfig
import tokenize
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

MAX_FILE_BYTES = 200_000
"""Longer sources are generated tables (and ``pydoc_data``), not Python as people write it."""

EXCLUDED_PACKAGES = frozenset(
    {"test", "idlelib", "lib2to3", "encodings", "pydoc_data", "turtledemo", "msilib"}
)
"""Tests, an editor, grammars, character tables and texts: no Python worth imitating."""

EXCLUDED_FOLDERS = frozenset({"test", "tests", "site-packages", "__pycache__", "_bundled"})

EXCLUDED_FILES = frozenset({"html/entities.py"})  # one dictionary of 2,231 names

HELD_OUT = ("fractions.py", "heapq.py", "json/encoder.py", "shlex.py", "textwrap.py")
"""Modules never trained on; the model card's perplexity is measured on them."""


@dataclass(frozen=True)
class Document:
    """One source file: its path below the standard library and its text."""

    name: str
    text: str


def stdlib_root() -> Path:
    """The folder of the running interpreter's standard library."""
    return Path(sysconfig.get_path("stdlib"))


def is_corpus_file(name: str) -> bool:
    """Whether the file at posix path ``name`` below the standard library is used at all.

    Only modules named by ``sys.stdlib_module_names`` count: that list is the same on every
    platform and leaves out what an installation adds (``sitecustomize``, build settings).
    """
    parts = name.split("/")
    top = parts[0].removesuffix(".py")
    if top not in sys.stdlib_module_names or top in EXCLUDED_PACKAGES:
        return False
    return name not in EXCLUDED_FILES and EXCLUDED_FOLDERS.isdisjoint(parts)


def read_documents(root: Path | None = None) -> list[Document]:
    """Read the corpus, held-out modules included, sorted by name.

    Raises:
        FileNotFoundError: ``root`` (by default the standard library) has no such sources, as
            with a zipped or stripped Python.
    """
    root = stdlib_root() if root is None else root
    documents = []
    for path in root.rglob("*.py"):
        name = path.relative_to(root).as_posix()
        if is_corpus_file(name) and 0 < path.stat().st_size <= MAX_FILE_BYTES:
            with tokenize.open(path) as source:  # honours PEP 263 coding lines
                documents.append(Document(name, source.read()))
    if not documents:
        raise FileNotFoundError(f"no standard library sources under {root}")
    return sorted(documents, key=lambda document: document.name)


def split_held_out(documents: Sequence[Document]) -> tuple[list[Document], list[Document]]:
    """Divide ``documents`` into (to train on, to measure on)."""
    train = [document for document in documents if document.name not in HELD_OUT]
    held_out = [document for document in documents if document.name in HELD_OUT]
    return train, held_out


def corpus_sha256(documents: Iterable[Document]) -> str:
    """Digest of names and texts in order, so that a card names the exact corpus."""
    digest = hashlib.sha256()
    for document in documents:
        digest.update(f"{document.name}\0{document.text}\0".encode())
    return digest.hexdigest()
