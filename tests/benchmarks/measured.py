"""What the tests of measurements run: ends well, or in a way in which a measurement can go wrong.

python -m tests.benchmarks.measured WAY FILE
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

VALUES = json.dumps({"all": 12.5})


def values() -> None:
    print("some text of a library")
    print(VALUES)


def chatters() -> None:
    """Libraries write on when a process ends, some of them what looks like the values."""
    print(VALUES)
    print("{'all': 'of this is Python'}")
    print("[1, 2]")
    print("goodbye")


def goes_on() -> None:
    """Prints what it has found until it is ended."""
    for number in range(1, 1000):
        print(json.dumps({"all": number}), flush=True)
        time.sleep(0.5)


def fails() -> None:
    raise ValueError("this model has no shape.")


def silent() -> None:
    sys.exit(3)


def says_nothing() -> None:
    print("all is well")


def crashes() -> None:
    print(VALUES, flush=True)
    print("about to go", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)


def floods() -> None:
    """Writes more than any log keeps."""
    for number in range(200_000):
        print(f"line {number} of many")
    print(VALUES)


def waits() -> None:
    file.write_text(str(os.getpid()))
    time.sleep(60)


def hangs() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    file.write_text(str(child.pid))
    time.sleep(60)


way, file = sys.argv[1], Path(sys.argv[2])
with file.open("a") as log:
    log.write(f"{way}\n")
globals()[way]()
