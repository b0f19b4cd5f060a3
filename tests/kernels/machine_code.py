"""What nvcc makes of a file of kernels for a GPU, compiled once for all processes of a run."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from distribution.nvcc import nvcc
from tests.engines import ROOT

CSRC = ROOT / "csrc"
NVCC = nvcc()
KERNELS = {path.stem: path for path in CSRC.glob("cuda/**/*.cu") if path.stem != "seen_tokens"}
"""The files by their names."""


@dataclass(frozen=True)
class MachineCode:
    """A file of kernels, compiled for one architecture."""

    ptx: str
    said: str
    """What the assembler says of registers and stack."""
    binary: Path

    def functions(self) -> dict[str, list[str]]:
        """Return the instructions of each kernel, with their suffixes."""
        parts = re.split(r"Function : (\S+)", run(disassembler(), "-sass", self.binary))[1:]
        pattern = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)")
        kernels = zip(parts[::2], parts[1::2], strict=True)
        return {name: pattern.findall(code) for name, code in kernels}

    def most_threads(self) -> dict[str, int]:
        """Return with how many threads each kernel can be launched: cudaFuncGetAttributes' word."""
        listing = run(disassembler(), "-elf", self.binary)
        parts = re.split(r"^\.nv\.info\.(\S+)$", listing, flags=re.M)[1:]
        pattern = re.compile(r"EIATTR_MAX_THREADS\s+Format:\s+\S+\s+Value:\s+(0x\w+)")
        texts = zip(parts[::2], parts[1::2], strict=True)
        found = {name: pattern.search(text) for name, text in texts}
        return {name: int(threads.group(1), 16) for name, threads in found.items() if threads}


def machine_code(source: str, architecture: str, folder: Path) -> MachineCode:
    """Compile a file of `KERNELS`, as the distribution does, unless `folder` has it already."""
    folder = folder / "machine_code" / architecture
    folder.mkdir(parents=True, exist_ok=True)
    binary, said = folder / f"{source}.cubin", folder / f"{source}.said"
    with FileLock(folder / f"{source}.lock"):
        if not said.exists():
            options = ("-cubin", "-std=c++17", "-O3", "-fmad=false", "-Xptxas=-v", f"-I{CSRC}")
            kept = ("--keep", f"--keep-dir={folder}", f"-arch={architecture}")
            said.write_text(run(str(NVCC), *options, *kept, KERNELS[source], "-o", binary))
    return MachineCode((folder / f"{source}.ptx").read_text(), said.read_text(), binary)


def disassembler() -> str:
    """Return NVIDIA's cuobjdump: the toolkit's, or the one that Triton brings along."""
    triton = importlib.util.find_spec("triton")
    folders = [Path(str(NVCC)).parent]
    if triton is not None and triton.origin is not None:
        folders.append(Path(triton.origin).parent / "backends" / "nvidia" / "bin")
    found = shutil.which("cuobjdump") or next(
        (str(path / "cuobjdump") for path in folders if (path / "cuobjdump").exists()), None
    )
    assert found, "cuobjdump is neither on PATH nor beside nvcc nor in Triton"
    return found


def run(*command: str | Path) -> str:
    """Return what a command says; if it fails, the test's failure shows it."""
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    return done.stdout
