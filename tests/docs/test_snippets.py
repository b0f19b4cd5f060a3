"""Every command and every Python snippet of README and documentation is run, here or elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any
from unittest.mock import patch

import openai
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.docs.blocks import Block, blocks_of, pages
from tests.docs.commands import ELSEWHERE, commands_of
from tests.docs.shared import HUB, Servers
from tests.engines import MODEL, ROOT
from tests.server.conftest import ENVIRONMENT

NOT_RUN = "# not run: "
"""First line of Python that needs what is not here, and says what."""

TWO_COLUMNS = re.compile(r"# Transformers +(?=# this vLLM)")
BLOCKS = {page: list(blocks_of(page)) for page in pages()}
PAGES = [
    page for page, blocks in BLOCKS.items() if any(b.language in ("python", "bash") for b in blocks)
]


SHORT_PAGES = {
    *("README.md", "docs/guides/deterministic.md", "docs/guides/from-huggingface.md"),
    "docs/server.md",
}
"""What a newcomer reads first; what the others do is tested elsewhere, too."""


def _cases() -> Iterator[Any]:
    for page in PAGES:
        name = str(page.relative_to(ROOT))
        yield pytest.param(page, id=name, marks=[pytest.mark.long] * (name not in SHORT_PAGES))


@pytest.mark.parametrize("page", _cases())
def test_what_a_page_shows_runs(
    page: Path, servers: Servers, shared_engines: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks run in order, in the repository's folder; those of Python share their names."""
    monkeypatch.chdir(ROOT)
    names: dict[str, Any] = {"__name__": "__main__", **known_names()}
    address = "http://127.0.0.1:8000"
    with patch.dict(os.environ):  # what a page sets is gone after it
        for block in BLOCKS[page]:
            if block.language == "bash":
                address = run_commands(block, servers) or address
            elif block.language == "python" and not block.code.startswith(NOT_RUN):
                code = block.code.replace("http://127.0.0.1:8000", address)
                for part in columns(code):
                    exec(compile(on_disk(part), block.place, "exec"), names)


def known_names() -> dict[str, Any]:
    """Return what README's snippets, which are parts of programs, take for granted."""
    return {
        "AutoModelForCausalLM": AutoModelForCausalLM,
        "name": str(MODEL),
        "openai": openai,
        "text": "def f(x):",
        "tokenizer": AutoTokenizer.from_pretrained(MODEL),
        "torch": torch,
    }


def on_disk(code: str) -> str:
    """Return code with models of the Hub by the paths of those that stand in for them."""
    for name, path in HUB.items():
        code = code.replace(f'"{name}"', repr(path))
    return code


def columns(code: str) -> list[str]:
    """Return the two programs of a block that shows one beside the other, or the one."""
    first = code.splitlines()[0]
    if not (found := TWO_COLUMNS.match(first)):
        return [code]
    at = found.end()
    lines = code.splitlines()
    return ["\n".join(line[:at].rstrip() for line in lines), "\n".join(line[at:] for line in lines)]


def run_commands(block: Block, servers: Servers) -> str | None:
    """Run a block of a shell; return the address of a server that it starts."""
    (first, *rest) = block.code.strip().splitlines()
    if first.startswith("vllm serve "):
        assert not rest, f"{block.place}: a server stands in a block of its own"
        return servers.address_of(first)
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block.code],
        cwd=ROOT,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{block.place}\n{done.stdout[-5000:]}"
    return None


def test_every_other_command_is_run_elsewhere() -> None:
    others = {
        command: block.place
        for block in chain.from_iterable(BLOCKS.values())
        if block.language in ("", "console")
        for command in commands_of(block.code)
    }
    unknown = {command: place for command, place in others.items() if command not in ELSEWHERE}
    assert not unknown
    assert not ELSEWHERE.keys() - others.keys()


@pytest.mark.parametrize("command", [one for one, where in ELSEWHERE.items() if "::" in where])
def test_where_a_command_is_run(command: str) -> None:
    file, _, name = ELSEWHERE[command].partition("::")
    assert f"def {name}(" in (ROOT / file).read_text()
