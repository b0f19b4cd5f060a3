"""A hook of MkDocs: files of the repository that are no pages are named, where pages link to them.

The same Markdown is read in the repository, where such links are relative paths.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1]
_LINK = re.compile(r"\[`?([^\]`]+)`?\]\((?!https?:|#|mailto:)([^)#\s]+)(#[^)\s]*)?\)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Return a page's text; links that lead out of ``docs/`` are what they name, as code.

    Raises:
        FileNotFoundError: there is no such file.
    """
    folder = (DOCS / page.file.src_path).parent

    def named(match: re.Match[str]) -> str:
        path = (folder / match[2]).resolve()
        if not path.exists():
            raise FileNotFoundError(f"{page.file.src_path}: {match[2]} is not there.")
        return match[0] if path.is_relative_to(DOCS) else f"`{match[1]}`"

    return _LINK.sub(named, markdown)
