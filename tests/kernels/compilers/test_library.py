"""Without the library one warning says why, and the torch implementation does the work."""

import os
import subprocess
import sys
from pathlib import Path

from vllm.fork_kernels import library

PROGRAM = """
import torch
from vllm import fork_kernels
from vllm.fork_kernels import library

library.load()
seen = torch.zeros(1, 2, dtype=torch.int32)
slots = torch.zeros(1, dtype=torch.int32)
fork_kernels.mark_seen_tokens(seen, slots, slots + 40)
logits = torch.ones(1, 64)
penalties = torch.full((1,), 2.0, dtype=torch.float64)
fork_kernels.apply_repetition_penalty(logits, seen, slots, penalties)
one_hot = torch.zeros(1, 64).index_fill_(1, torch.tensor([9]), 1.0)
state = fork_kernels.seeded_state(0).unsqueeze(0)
assert fork_kernels.draw_tokens(one_hot, state, slots, slots.long()).tolist() == [9]
print("compiled" if library.load() else "torch", logits[0].argmin().item(), logits.sum().item())
"""


def run(path: Path) -> tuple[str, str]:
    """Output and warnings of the program above, with the library expected at ``path``."""
    environment = os.environ | {library.LIBRARY_VARIABLE: str(path)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    warnings = [line for line in done.stderr.splitlines() if "compiled operators" in line]
    return done.stdout.strip(), "\n".join(warnings)


def test_missing(tmp_path: Path) -> None:
    output, warning = run(tmp_path / "absent.so")
    assert output == "torch 40 63.5"
    assert warning.count("slower torch implementation") == 1
    assert f"there is no file {tmp_path / 'absent.so'}" in warning


def test_broken(tmp_path: Path) -> None:
    broken = tmp_path / "broken.so"
    broken.write_text("not a library")
    output, warning = run(broken)
    assert output == "torch 40 63.5"
    assert warning.count("slower torch implementation") == 1
    assert str(broken) in warning
