"""Runs a command, keeps what it prints in a file, and shows how far it is.

    python -m distribution.quiet FILE TITLE -- COMMAND...

On a terminal the latest line stands in one place; elsewhere one is printed now and then. Notes to
the user stay, and if the command fails, its sentence is shown, or the end of what it printed.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

INTERVAL = 20.0
"""Seconds between two lines where there is no terminal."""
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
        if line.startswith("note: "):
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
    """Run `command` and return its exit status."""
    log.parent.mkdir(parents=True, exist_ok=True)
    print(f"{title} (its output goes to {log})", flush=True)
    progress = Progress()
    lines: list[str] = []
    with (
        log.open("w") as file,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        ) as process,
    ):
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
    if process.returncode == 0:
        print(f"  done in {progress.elapsed()}", flush=True)
    else:
        _show_failure(lines, log)
    return process.returncode


def _show_failure(lines: list[str], log: Path) -> None:
    """Print this project's own sentences, which say what to do, or else the last lines."""
    errors = dict.fromkeys(line.strip() for line in lines if line.strip().startswith("error: "))
    own = [line for line in errors if " " in line.removeprefix("error: ")]  # pip's are one word
    for line in own or lines[-SHOWN:]:
        print(line, file=sys.stderr)
    print(f"The whole output is in {log}.", file=sys.stderr)


if __name__ == "__main__":
    file, title, separator, *command = sys.argv[1:]
    if separator != "--" or not command:
        sys.exit("usage: python -m distribution.quiet FILE TITLE -- COMMAND...")
    sys.exit(run(Path(file), title, command))
