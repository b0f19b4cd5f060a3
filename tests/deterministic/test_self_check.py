"""The start-up check accepts other instruction sets, and notices one wrong bit."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from vllm.deterministic import self_check
from vllm.fork_ops.portable_norm import portable_rms_norm

PROGRAM = "from vllm.deterministic.self_check import check_machine; check_machine()"


@pytest.mark.parametrize("isa", ["scalar", "avx2", "amx"])
def test_instruction_sets(isa: str) -> None:
    """One that the machine lacks is refused when it is forced."""
    environment = os.environ | {"VLLM_FORK_CPU_ISA": isa}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True
    )
    assert (
        done.returncode == 0 or f"={isa} is not an instruction set that this CPU" in done.stderr
    ), done.stderr


def test_one_wrong_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(x: torch.Tensor, *arguments: object, **options: object) -> torch.Tensor:
        normed = portable_rms_norm(x, *arguments, **options)  # type: ignore[arg-type]
        normed.view(torch.int16)[3, 7] ^= 1
        return normed

    monkeypatch.setattr(self_check, "portable_rms_norm", wrong)
    with pytest.raises(RuntimeError, match="computes norms with other bits than the specification"):
        self_check.check_machine()
