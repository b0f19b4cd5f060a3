"""The start-up check accepts other instruction sets, and notices one wrong bit.

Which ways GPUs have to share work out it goes through:
tests/kernels/product/test_self_check_paths.py. What it computes on one: test_emulated_gpu.py.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from typing import Any

import pytest
import torch

from vllm.deterministic import self_check
from vllm.fork_kernels.portable.norm import portable_rms_norm

PROGRAM = "from vllm.deterministic.self_check import check_machine; check_machine()"


@pytest.mark.some(2)
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


@pytest.fixture
def wrong_norms(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bit of every norm is wrong."""

    def wrong(x: torch.Tensor, *arguments: object, **options: object) -> torch.Tensor:
        normed = portable_rms_norm(x, *arguments, **options)  # type: ignore[arg-type]
        normed.view(torch.int16)[3, 7] ^= 1
        return normed

    monkeypatch.setattr(self_check, "portable_rms_norm", wrong)


WRONG_BITS = "computes norms and products of what was just computed with other bits than the speci"


@pytest.mark.usefixtures("wrong_norms")
@pytest.mark.parametrize("value", ["", "0"])
def test_one_wrong_bit(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_FORK_OTHER_BITS", value)
    with pytest.raises(RuntimeError, match=WRONG_BITS) as error:
        self_check.check_machine()
    assert f"instead of {self_check.EXPECTED['norms']}, " in str(error.value)


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the check has logged."""
    said: list[str] = []
    monkeypatch.setattr(
        self_check.logger, "warning", lambda text, *arguments: said.append(text % arguments)
    )
    return said


@pytest.mark.usefixtures("wrong_norms")
def test_other_bits_can_be_measured(warnings: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_FORK_OTHER_BITS", "1")
    self_check.check_machine()
    (said,) = warnings
    assert WRONG_BITS in said
    assert "VLLM_FORK_OTHER_BITS=1 lets it answer, for measurements only" in said


def test_right_bits_need_no_warning(warnings: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_FORK_OTHER_BITS", "1")
    self_check.check_machine()
    assert warnings == []


@pytest.mark.parametrize("value", ["yes", "2", " 1"])
def test_other_values_of_the_variable(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_FORK_OTHER_BITS", value)
    with pytest.raises(
        RuntimeError, match=f"VLLM_FORK_OTHER_BITS must be 0 or 1, but is '{value}'"
    ):
        self_check.check_machine()


def test_what_is_only_for_gpus_has_the_same_bits_here() -> None:
    assert dict(self_check.digests()) == self_check.EXPECTED


def test_a_cpu_does_not_compute_what_is_only_for_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []

    def counted(name: str) -> Any:
        def compute(numbers: Any) -> list[torch.Tensor]:
            names.append(name)
            return known[name](numbers)

        return compute

    known = self_check._GROUPS
    groups = {name: counted(name) for name in known}
    monkeypatch.setattr(self_check, "_GROUPS", groups)
    self_check.check_machine()
    assert names == list(self_check.ON_CPUS)


def test_answers_are_the_tensors_behind_the_digests() -> None:
    ((name, tensors),) = self_check.answers("cpu", ["rotary embeddings"])
    assert name == "rotary embeddings"
    bits = b"".join(tensor.view(torch.uint8).numpy().tobytes() for tensor in tensors)
    assert hashlib.sha256(bits).hexdigest()[:16] == self_check.EXPECTED[name]
