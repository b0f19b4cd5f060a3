"""Writes the table of settings that cost Hugging Face's bits into ``docs/flags.md``.

    python -m tools.inexact_settings [--write]

Without ``--write`` the status is 1 if the page has another table.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from vllm.hf_layers.inexact_settings import SETTINGS, Setting

PAGE = Path(__file__).parents[1] / "docs" / "flags.md"
BEGIN, END = "<!-- python -m tools.inexact_settings --write -->\n", "<!-- end of the table -->\n"
_HEAD = '| setting | why | instead | `hf_compat="exact"` |\n|---|---|---|---|\n'


class _Names:
    """Has the name of each attribute of an engine, in capitals."""

    def __getattr__(self, name: str) -> _Name:
        return _Name(name.upper())


class _Name(str):
    """Has no quotation marks where the text of a setting asks for them."""

    def __repr__(self) -> str:
        return str(self)


def table() -> str:
    """Return the table, as Markdown."""
    return _HEAD + "".join(map(_row, SETTINGS))


def _row(setting: Setting) -> str:
    name, reason, remedy = (
        text.format(_Names()) for text in (setting.name, setting.reason, setting.remedy)
    )
    title = setting.title or f"`{name}`"
    exact = "goes with it" if setting.has_exact else ""
    return f"| {title} | {reason} | {remedy} | {exact} |\n"


def with_table(page: str) -> str:
    """Return a page with the table between its marks.

    Raises:
        ValueError: it has no marks.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"{PAGE} has no place for the table: {BEGIN!r} and {END!r}.")
    return f"{before}{begin}\n{table()}\n{end}{after}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    page = PAGE.read_text()
    if options.write:
        PAGE.write_text(with_table(page))
    sys.exit(page != with_table(page) and not options.write)


if __name__ == "__main__":
    main()
