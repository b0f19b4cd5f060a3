"""The choice between instruction sets: every one that this CPU has gives the same bits."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kernels.logits.seen_token_cases import ALL_ISAS, BEST_ISA, ISA_VARIABLE
from vllm.fork_kernels import library

AVAILABLE_ISAS = ALL_ISAS[ALL_ISAS.index(BEST_ISA) :]


def run(isa: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python with an instruction set asked for: the choice is made once in a process."""
    environment = os.environ | {ISA_VARIABLE: isa}
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.some(1)
@pytest.mark.parametrize("isa", AVAILABLE_ISAS)
def test_same_bits_with_each(isa: str) -> None:
    names = (
        "logits/test_repetition_penalty",
        "logits/test_draw_tokens",
        "product/test_portable_product",
    )
    tests = [str(Path(__file__).parents[1] / f"{name}.py") for name in names]
    selection = "compiled or instruction_set"
    done = run(isa, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", selection, *tests)
    assert done.returncode == 0, done.stdout


@pytest.mark.some(2)
@pytest.mark.parametrize("isa", ["sse9", *ALL_ISAS[: ALL_ISAS.index(BEST_ISA)]])
def test_one_that_is_not_there_is_an_error(isa: str) -> None:
    done = run(isa, "-c", "import vllm.fork_kernels")
    assert done.returncode != 0
    sentence = (
        f"VLLM_FORK_CPU_ISA={isa} is not an instruction set that this CPU and this build have. "
        f"They have: {', '.join(AVAILABLE_ISAS)}."
    )
    assert sentence in done.stderr


def test_wide_registers_stay_in_the_functions_that_dispatch_guards() -> None:
    """A CPU without AVX or AMX must load the library and run everything else in it."""
    functions = _functions_with(r"%[yzt]mm\d|%k[0-7]")
    assert functions, "the library has no AVX code at all"
    strangers = [name for name in functions if not re.search(r"avx|amx", name, re.IGNORECASE)]
    assert not strangers


def _functions_with(pattern: str) -> set[str]:
    """Names of the functions of the library whose instructions match the pattern."""
    listing = subprocess.run(
        ["objdump", "-d", "--no-show-raw-insn", str(library.library_path())],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    functions: set[str] = set()
    name = ""
    for line in listing.splitlines():
        header = re.match(r"[0-9a-f]+ <(.+)>:$", line)
        if header:
            name = header.group(1)
        elif re.search(pattern, line):
            functions.add(name)
    return functions
