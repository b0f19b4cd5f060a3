"""The CUDA code, as far as a machine without a GPU can tell: it compiles, and is what it should be.

The arithmetic of the kernels is in a header that g++ compiles too; that is tested with numbers.
"""

import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from distribution.kernels import build_library
from tests.engines import ROOT
from tests.kernels.logits.seen_token_cases import (
    PENALTIES,
    adversarial_logits,
    assert_same_bits,
    by_hand,
)
from tests.kernels.machine_code import CSRC, NVCC, disassembler, run
from vllm.fork_kernels import DivisionRule

ARCHITECTURES = {80, 86, 89, 90, 100, 120}

# Reads float32 from stdin, penalizes each by the first argument, writes float32 to stdout.
HOST_PROGRAM = """
#include <cstdio>
#include <cstdlib>
#include "portable/repetition_penalty.h"

int main(int, char** arguments) {
  const vllm_fork::RepetitionPenalty<vllm_fork::DivisionRule::RULE> penalize(
      std::strtod(arguments[1], nullptr));
  for (float x; std::fread(&x, sizeof x, 1, stdin) == 1;) {
    x = penalize(x);
    std::fwrite(&x, sizeof x, 1, stdout);
  }
}
"""


@pytest.mark.parametrize("rule", DivisionRule)
def test_the_shared_header(tmp_path: Path, rule: DivisionRule) -> None:
    """Both rules of the arithmetic that the kernels call, against numpy."""
    program = compile_host_program(tmp_path, rule)
    logits = adversarial_logits(1, 20000)
    for penalty in PENALTIES:
        done = subprocess.run(
            [program, repr(penalty)],
            input=logits.numpy().tobytes(),
            capture_output=True,
            check=True,
        )
        actual = torch.from_numpy(np.frombuffer(done.stdout, dtype=np.float32).copy())
        assert_same_bits(actual.unsqueeze(0), by_hand(logits, penalty, rule))


def compile_host_program(folder: Path, rule: DivisionRule) -> Path:
    name = {DivisionRule.DIVIDE: "kDivide", DivisionRule.RECIPROCAL: "kReciprocal"}[rule]
    source = folder / "program.cpp"
    source.write_text(HOST_PROGRAM.replace("RULE", name))
    program = folder / "program"
    run("g++", "-std=c++17", "-O2", "-ffp-contract=off", f"-I{CSRC}", source, "-o", program)
    return program


@pytest.mark.long
def test_the_cuda_library_builds_for_every_architecture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The CMake build with CUDA, torch's side included, even beside a torch without CUDA.

    No kernel spills registers or has local memory, on any architecture.
    """
    monkeypatch.setenv("CUDAFLAGS", "-Xptxas -Werror,-warn-spills,-warn-lmem-usage")
    for name in ("cmake", "csrc"):
        shutil.copytree(ROOT / name, tmp_path / name)
    shutil.copy(ROOT / "CMakeLists.txt", tmp_path)
    library = build_library("cuda", tmp_path)
    device_code = device_code_of(library, tmp_path)
    assert {version for kind, version in device_code if kind == "machine code"} == ARCHITECTURES
    assert ("ptx", max(ARCHITECTURES)) in device_code  # for generations to come

    commands = (library.parent / "build.ninja").read_text()
    assert "-fmad=false" in commands
    assert "-warn-spills" in commands
    assert "fast_math" not in commands


@pytest.mark.long
@pytest.mark.parametrize("kernel", ["product", "attention"])
def test_the_clocks_of_kernels_build(tmp_path: Path, kernel: str) -> None:
    """With the flags that the programs name, for the GPU machine on which they run."""
    folder = ROOT / "benchmarks" / "gpu" / "clocks"
    program = tmp_path / kernel
    options = ("-std=c++17", "-O3", "-fmad=false", "-cudart", "static", "-DVLLM_FORK_CLOCKS")
    target = "-gencode=arch=compute_90a,code=sm_90a"
    sources = (folder / f"{kernel}.cu", CSRC / "cuda" / "primitives" / "launch.cu")
    run(str(NVCC), *options, target, f"-I{CSRC}", *sources, "-o", program)
    assert "CS2R" in run(disassembler(), "-sass", program)


@pytest.mark.parametrize("architecture", [80, 90, 120])
def test_the_repetition_penalty_in_ptx(tmp_path: Path, architecture: int) -> None:
    """No fused, approximate or flushing instruction, not even where nvcc is free to contract."""
    source = CSRC / "cuda" / "logits" / "seen_tokens.cu"
    output = tmp_path / "kernel.ptx"
    options = ("-ptx", "-std=c++17", "-O3", "-fmad=true", f"-I{CSRC}")
    virtual = f"-arch=compute_{architecture}"
    run(str(NVCC), *options, virtual, source, "-o", output)
    operations = [
        words[0]
        for words in map(str.split, output.read_text().splitlines())
        if words and ".f32" in words[0]
    ]
    arithmetic = {name for name in operations if name.startswith(("mul", "div", "rcp", "add"))}
    assert arithmetic == {"mul.rn.f32", "div.rn.f32"}
    assert not [name for name in operations if name.startswith(("fma", "mad", "ex2", "sub"))]


# Everything of the portable product that CPU and GPU share, in the kernels of a rank.
PRODUCT_SOURCE = """
#include "portable/product.h"
#include "portable/product_layout.h"

using namespace vllm_fork;

__global__ void split(const Float16* halves, const Bfloat16* brains, float* values, int* digits) {
  const int i = threadIdx.x;
  values[i] = widen(halves[i]) * power_of_two(-3) + widen(brains[i]);
  const int exponent = block_exponent(bits_of(values[i]) & ~kSignBit, kLeastRowExponent);
  const int v = break_tie(round_to_integer(values[i] * power_of_two(-exponent)));
  digits[2 * i] = upper_digit(v);
  digits[2 * i + 1] = lower_digit(v);
}

__global__ void finish(const int* high, const int* mixed, const int* words, const float* scales,
                       const float* bias, Float16* halves, Bfloat16* brains, float* floats,
                       ProductShape shape) {
  const int64_t i = threadIdx.x % shape.panel_bytes();
  const float weight_scale = float_of(scale_bits(words[i]));
  const float sum = add_block_sum(floats[i], high[i], mixed[i], weight_scale, scales[i]);
  floats[i] = narrow<float>(sum + normal_bias(bias[i]));
  halves[i] = narrow<Float16>(sum);
  brains[i] = narrow<Bfloat16>(sum);
}
"""


@pytest.mark.parametrize("architecture", [80, 90, 120])
def test_the_portable_product_in_ptx(tmp_path: Path, architecture: int) -> None:
    """The shared headers compile for GPUs, and what must not be fused there is not."""
    source, output = tmp_path / "product.cu", tmp_path / "product.ptx"
    source.write_text(PRODUCT_SOURCE)
    options = ("-ptx", "-std=c++17", "-O3", f"-arch=compute_{architecture}", f"-I{CSRC}")
    run(str(NVCC), *options, "-fmad=true", source, "-o", output)
    finish = output.read_text().partition("finish")[2]
    for operation in ("cvt.rn.f32.s32", "mul.rn.f32", "add.rn.f32"):
        assert operation in finish
    for operation in ("fma", "ftz", "approx"):
        assert operation not in finish


def device_code_of(library: Path, folder: Path) -> list[tuple[str, int]]:
    """What device code a library holds: pairs of kind and compute capability."""
    section = folder / "fatbin"
    run("objcopy", "-O", "binary", "--only-section=.nv_fatbin", library, section)
    return list(parse_fat_binary(section.read_bytes()))


def parse_fat_binary(data: bytes) -> Iterator[tuple[str, int]]:
    """Walk the containers of a ``.nv_fatbin`` section.

    A container is a header (magic, version, own size, payload size) and entries; an entry is a
    header (kind, flags, own size, payload size, ..., compute capability at byte 28) and a payload.
    """
    magic = struct.pack("<I", 0xBA55ED50)
    kinds = {1: "ptx", 2: "machine code"}
    start = data.find(magic)
    while start >= 0:
        header_size, size = struct.unpack_from("<HQ", data, start + 6)
        entry = start + header_size
        end = entry + size
        while entry < end:
            kind, _, entry_header, payload = struct.unpack_from("<HHIQ", data, entry)
            (capability,) = struct.unpack_from("<I", data, entry + 28)
            yield kinds[kind], capability
            entry += entry_header + payload
        start = data.find(magic, end)
