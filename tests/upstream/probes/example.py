"""What the example of a report prints last."""

from __future__ import annotations

import contextlib
import io
import json
import sys

if __name__ == "__main__":
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = json.loads(sys.argv[1])["code"]
        exec(compile(code, "example", "exec"), {"__name__": "__main__"})
    from _report import report  # it imports vLLM, before which an example may set variables

    report(printed.getvalue().splitlines()[-1])
