"""What nvcc makes of the CUDA kernels: only operations that round once, and nothing in memory.

Operations that are written with their rounding in PTX are what the processor does: the assembler
may fuse only those that are not.
"""

import re
from pathlib import Path

import pytest

from tests.kernels.machine_code import KERNELS, machine_code

pytestmark = pytest.mark.some(1)

SOURCES = sorted(KERNELS)
ROUNDED = {f"{name}.rn.f32" for name in ("add", "sub", "mul", "div", "rcp", "sqrt", "fma")}
ROUNDED_DOUBLE = {f"{name}.rn.f64" for name in ("add", "sub", "mul", "div")}
EXACT = (
    *("abs", "cvt", "ld", "mov", "neg", "selp", "setp", "shfl", "st"),  # of float32 and float64
    "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32",  # of digits
)
WITHOUT_FUSED = ("append", "argmax", "first_of_parts", "top_k", "rotary_table")
"""Kernels in which the specification fuses nothing."""


def kernels_of(ptx: str) -> dict[str, str]:
    parts = re.split(r"^\.visible \.entry (\w+)", ptx, flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def float_operations(code: str) -> set[str]:
    return set(re.findall(r"^\s+(?:@!?%p\d+ )?([a-z0-9_.]+\.f(?:32|64))\s", code, re.M))


@pytest.mark.some(1)
@pytest.mark.parametrize("source", SOURCES)
def test_operations_round_once(source: str, shared_folder: Path) -> None:
    kernels = kernels_of(machine_code(source, "sm_80", shared_folder).ptx)
    assert kernels
    for name, code in kernels.items():
        operations = float_operations(code)
        assert not [o for o in operations if "approx" in o or "ftz" in o], name
        arithmetic = {o for o in operations if not o.startswith(EXACT)}
        assert arithmetic <= ROUNDED | ROUNDED_DOUBLE, name
        if any(f"{part}_kernel" in name for part in WITHOUT_FUSED):
            assert "fma.rn.f32" not in arithmetic, name


@pytest.mark.some(1)
@pytest.mark.parametrize(
    ("source", "architecture"),
    [
        *((source, "sm_80") for source in SOURCES),
        *((source, "sm_90a") for source in SOURCES if source.startswith("prompt_attention")),
    ],
)
def test_everything_is_in_registers(source: str, architecture: str, shared_folder: Path) -> None:
    """No stack, hence no local memory, and no spilled register."""
    code = machine_code(source, architecture, shared_folder)
    properties = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores", code.said)
    assert len(properties) == len(kernels_of(code.ptx))
    assert set(properties) == {("0", "0")}


def test_attention_is_on_tensor_cores(shared_folder: Path) -> None:
    kernels = kernels_of(machine_code("attention", "sm_80", shared_folder).ptx)
    attention = [code for name, code in kernels.items() if "attention_kernel" in name]
    assert len(attention) == 6
    for code in attention:
        assert "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32" in code
