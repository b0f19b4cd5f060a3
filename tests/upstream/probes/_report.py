"""How a probe hands its value back: one line of JSON, after everything else is printed."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import psutil

import vllm

arguments: dict[str, Any] = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}


def report(value: Any) -> None:
    sys.stderr.flush()
    print("\n" + json.dumps({"vllm": vllm.__file__, "value": value}), flush=True)
    # An engine that a bug has killed must neither hang the exit nor turn its status.
    for child in psutil.Process().children(recursive=True):
        child.kill()
    os._exit(0)
