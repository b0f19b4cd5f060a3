"""What the host asks of GPUs before it launches kernels: once, of each, and what it makes of it.

csrc/cuda/primitives/launch.cu runs with a runtime that stands for several GPUs.
"""

import ctypes
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from tests.kernels.machine_code import CSRC, NVCC, machine_code, run
from vllm.fork_kernels.dependent_launches import dependent_launches

SOURCE = Path(__file__).with_name("several_gpus") / "launch.cpp"
VARIABLE = "VLLM_FORK_CUDA_DEPENDENT_LAUNCH"
THREADS = 8
WAITING, NOT_WAITING = 64, 32
"""The threads that say what code was compiled for."""
KIB = 1024


@pytest.mark.parametrize(
    ("architecture", "threads"),
    [
        *(("80", NOT_WAITING), ("86", NOT_WAITING), ("89", NOT_WAITING)),
        *(("90", WAITING), ("90a", WAITING), ("100", WAITING), ("120", WAITING)),
    ],
)
def test_code_says_whether_it_waits(architecture: str, threads: int, shared_folder: Path) -> None:
    """In what any machine code tells, whoever made it of what."""
    code = machine_code("launch", f"sm_{architecture}", shared_folder)
    assert set(code.most_threads().values()) == {threads}


def test_code_waits_where_it_says_so(tmp_path: Path) -> None:
    """PTX of before 9.0 does not wait on any GPU, and says so on all."""
    for virtual, threads in (("80", NOT_WAITING), ("90", WAITING)):
        for name in ("primitives/launch", "rows/rotary"):
            ptx = tmp_path / f"{Path(name).name}_{virtual}.ptx"
            options = ("-ptx", "-std=c++17", f"-arch=compute_{virtual}", f"-I{CSRC}")
            run(str(NVCC), *options, CSRC / "cuda" / f"{name}.cu", "-o", ptx)
        assert f".maxntid {threads}" in (tmp_path / f"launch_{virtual}.ptx").read_text()
        waits = "griddepcontrol.wait" in (tmp_path / f"rotary_{virtual}.ptx").read_text()
        assert waits == (threads == WAITING)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("several_gpus") / "launch.so"
    options = (
        *("-std=c++17", "-O1", "-fPIC", "-shared", "-pthread", "-Wall", "-Wextra", "-Werror"),
        "-fno-gnu-unique",  # each copy has variables of its own
    )
    folders = (f"-I{SOURCE.parent}", f"-I{CSRC}")
    subprocess.run(["g++", *options, *folders, str(SOURCE), "-o", str(path)], check=True)
    return path


class Gpus:
    """The library in a state of its own, which has asked nothing yet."""

    def __init__(self, library: Path) -> None:
        self.library = ctypes.CDLL(str(library))
        self.library.reason.restype = ctypes.c_char_p
        self.library.last_allowed.restype = ctypes.c_size_t
        self.library.begins_early.restype = self.library.is_allowed.restype = ctypes.c_bool

    def describe(
        self, gpu: int, capability: int = 90, code: int = WAITING, *, is_mute: bool = False
    ) -> None:
        shared = ctypes.c_size_t((227 if capability >= 90 else 99) * KIB)
        self.library.describe(gpu, capability, code, shared, ctypes.c_bool(is_mute))

    def reason(self, gpu: int) -> str:
        said: bytes = self.library.reason(gpu)
        return said.decode()

    def begins_early(self, gpu: int) -> bool:
        return bool(self.library.begins_early(gpu))

    def is_allowed(self, gpu: int, kernel: int, kib: int) -> bool:
        sizes = (ctypes.c_size_t(kernel), ctypes.c_size_t(kib * KIB))
        return bool(self.library.is_allowed(gpu, *sizes))

    def times_asked(self, gpu: int) -> int:
        return int(self.library.times_asked(gpu))


@pytest.fixture
def gpus(compiled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Gpus:
    monkeypatch.delenv(VARIABLE, raising=False)
    return Gpus(Path(shutil.copy(compiled, tmp_path / "launch.so")))


@pytest.mark.parametrize(
    ("capability", "code", "reason"),
    [
        (90, WAITING, ""),
        (103, WAITING, ""),
        (120, 1024, ""),
        (80, NOT_WAITING, "the GPU has compute capability 8.0, and it needs 9.0"),
        (89, NOT_WAITING, "the GPU has compute capability 8.9, and it needs 9.0"),
        (
            *(90, NOT_WAITING),
            "what the GPU runs of the library was compiled for compute capability 8.x",
        ),
    ],
)
def test_reasons_to_begin_in_turn(capability: int, code: int, reason: str, gpus: Gpus) -> None:
    gpus.describe(0, capability, code)
    assert gpus.reason(0) == reason
    assert gpus.begins_early(0) == (reason == "")


@pytest.mark.parametrize(
    ("value", "is_early"), [("0", False), ("off", False), ("1", True), ("", True)]
)
def test_the_variable(
    value: str, is_early: bool, gpus: Gpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, value)
    gpus.describe(0)
    assert gpus.begins_early(0) is is_early
    assert gpus.reason(0) == ("" if is_early else f"{VARIABLE}={value}")


def test_each_gpu_is_asked_once(gpus: Gpus) -> None:
    """By several threads, each of which goes from one GPU to the other."""
    for gpu, capability in enumerate((90, 80)):
        gpus.describe(gpu, capability, WAITING if capability == 90 else NOT_WAITING)

    def launch(thread: int) -> list[bool]:
        return [gpus.begins_early((thread + i) % 2) for i in range(200)]

    with ThreadPoolExecutor(THREADS) as threads:
        found = list(threads.map(launch, range(THREADS)))
    for thread, early in enumerate(found):
        assert early == [(thread + i) % 2 == 0 for i in range(200)]
    assert (gpus.times_asked(0), gpus.times_asked(1)) == (3, 3)


def test_an_error_is_not_kept(gpus: Gpus) -> None:
    gpus.describe(0, is_mute=True)
    assert not gpus.begins_early(0)
    assert gpus.reason(0) == "the CUDA runtime does not say what the GPU can do"
    gpus.describe(0)
    assert gpus.begins_early(0)
    assert gpus.reason(0) == ""


def test_shared_memory_is_allowed_once(gpus: Gpus) -> None:
    """To each kernel on each GPU, and never less than before."""
    for gpu in (0, 1):
        gpus.describe(gpu)
    assert gpus.is_allowed(0, 1, 48)
    assert gpus.times_asked(0) == 0
    for kib in (100, 60, 100):
        assert gpus.is_allowed(0, 1, kib)
        assert (gpus.times_asked(0), gpus.library.last_allowed(0)) == (1, 100 * KIB)
    assert gpus.is_allowed(0, 1, 120)
    assert gpus.is_allowed(0, 2, 100)
    assert gpus.is_allowed(1, 1, 100)
    assert (gpus.times_asked(0), gpus.times_asked(1)) == (3, 1)


def test_shared_memory_that_there_is_not(gpus: Gpus) -> None:
    gpus.describe(0, 80)
    assert not gpus.is_allowed(0, 1, 200)
    gpus.describe(0, 90)
    assert gpus.is_allowed(0, 1, 200)


def test_a_cpu_has_none() -> None:
    with pytest.raises(RuntimeError, match=re.escape("have no kernels that cpu could launch")):
        dependent_launches(torch.device("cpu"))
