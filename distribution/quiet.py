"""Runs a command, keeps what it prints in a file, and shows how far it is.

    python -m distribution.quiet FILE TITLE -- COMMAND...

On a terminal the latest line stands in one place; elsewhere one is printed now and then. Notes to
the user stay, and if the command fails, its sentence is shown, or the end of what it printed.
"""

from __future__ import annotations

import io
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from distribution.torch_source import NOTE

INTERVAL = 20.0
"""Seconds between two lines where there is no terminal."""
_SENTENCE = re.compile(r"\s*(error: .* |ERROR: )")  # pip's own errors in small letters are words
SHOWN = 30
"""Lines of a failure without a sentence of its own."""


class Progress:
    """Shows the latest line of a command's output."""

    def __init__(self) -> None:
        self.is_terminal = sys.stdout.isatty()
        self.start = self.shown_at = time.monotonic()

    def show(self, line: str) -> None:
        """Show what the command does, if it is time to."""
        now = time.monotonic()
        if line.startswith(NOTE):
            self._print(line, stays=True)  # whole, however long
        elif self.is_terminal or now - self.shown_at > INTERVAL:
            self.shown_at = now
            width = shutil.get_terminal_size().columns - 1
            shown = f"  {self.elapsed()}  {line}"[:width]
            self._print(shown, stays=not self.is_terminal)

    def elapsed(self) -> str:
        """Return minutes and seconds since the start."""
        minutes, seconds = divmod(int(time.monotonic() - self.start), 60)
        return f"{minutes}:{seconds:02}"

    def clear(self) -> None:
        """Take the latest line away."""
        if self.is_terminal:
            print("\r\033[K", end="", flush=True)

    def _print(self, line: str, *, stays: bool) -> None:
        self.clear()
        print(line, end="\n" if stays else "", flush=True)


def run(log: Path, title: str, command: list[str]) -> int:
    """Run `command` and return its exit status, as a shell gives it."""
    log.parent.mkdir(parents=True, exist_ok=True)
    print(f"{title} (its output goes to {log})", flush=True)
    progress = Progress()
    lines: list[str] = []
    with (
        log.open("w", encoding="utf-8", errors="replace") as file,
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
        ) as process,
    ):
        signal.signal(signal.SIGTERM, lambda number, frame: process.terminate())
        assert process.stdout is not None
        try:
            for line in process.stdout:
                file.write(line)
                file.flush()
                lines.append(line.rstrip())
                if line.strip():
                    progress.show(line.strip())
        except KeyboardInterrupt:  # the command has it, too
            process.wait()
            progress.clear()
            print(f"Interrupted after {progress.elapsed()}.")
            return 130
    progress.clear()
    status = process.returncode
    if status == 0:
        print(f"  done in {progress.elapsed()}", flush=True)
        return 0
    if status < 0:
        lines.append(f"error: it was ended by {signal.Signals(-status).name}.")
        status = 128 - status
    _show_failure(lines, log)
    return status


def _show_failure(lines: list[str], log: Path) -> None:
    """Print the sentences that say what to do, this project's and pip's, or the last lines."""
    sentences = [line.strip() for line in lines if _SENTENCE.match(line)]
    for line in list(dict.fromkeys(sentences)) or lines[-SHOWN:]:
        print(line, file=sys.stderr)
    print(f"The whole output is in {log}.", file=sys.stderr)


if __name__ == "__main__":
    file, title, separator, *command = sys.argv[1:]
    if separator != "--" or not command:
        sys.exit("usage: python -m distribution.quiet FILE TITLE -- COMMAND...")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # in an ASCII locale
    sys.exit(run(Path(file), title, command))
