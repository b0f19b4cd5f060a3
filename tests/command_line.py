"""The command ``vllm`` in the test's own process, which has imported everything already."""

from __future__ import annotations

import io
import os
import signal
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from unittest.mock import patch

import pytest


@dataclass(frozen=True)
class Ended:
    """How a command ended: its status and what it printed."""

    status: int
    out: str
    err: str


def vllm_command(*words: object) -> Ended:
    """Run ``vllm`` with these words to its end; environment and signals are as before then."""
    from vllm.entrypoints.cli.main import main
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    argv = ["vllm", *map(str, words)]
    out, err = io.StringIO(), io.StringIO()
    on_term = signal.getsignal(signal.SIGTERM)
    try:
        with (
            patch("sys.argv", argv),
            patch.dict(os.environ),
            # the group that `--help=GROUP` names, which the class keeps
            patch.object(FlexibleArgumentParser, "_search_keyword", None),
            redirect_stdout(out),
            redirect_stderr(err),
            pytest.raises(SystemExit) as end,
        ):
            main()
    finally:
        signal.signal(signal.SIGTERM, on_term)
    code = end.value.code
    if isinstance(code, str):  # Python prints a sentence, and ends with 1
        return Ended(1, out.getvalue(), f"{err.getvalue()}{code}\n")
    return Ended(code or 0, out.getvalue(), err.getvalue())
