"""What nvcc makes of the kernels of the portable product, as far as machine code can be read."""

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from test_cuda_build import CSRC, NVCC

SOURCE = CSRC / "cuda" / "portable_product.cu"
ARCHITECTURES = ("80", "86", "89", "90a", "100", "120")
TILES = 6  # kernels that multiply, one of them with Hopper's instructions


def disassembler() -> str:
    """NVIDIA's cuobjdump: the toolkit's, or the one that Triton brings along."""
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


def functions_of(listing: str) -> dict[str, list[str]]:
    """The instructions of each kernel, with their suffixes."""
    parts = re.split(r"Function : (\S+)", listing)[1:]
    pattern = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)")
    return {name: pattern.findall(code) for name, code in zip(parts[::2], parts[1::2], strict=True)}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_machine_code(tmp_path: Path, architecture: str) -> None:
    """Tensor cores multiply, nothing spills, and no arithmetic is fused or approximate."""
    binary = tmp_path / "product.cubin"
    options = ("-cubin", "-std=c++17", "-O3", "-fmad=false", "--ptxas-options=-v")
    said = run(str(NVCC), *options, f"-arch=sm_{architecture}", SOURCE, "-o", binary)
    assert "bytes stack frame" in said
    assert set(re.findall(r"(\d+) bytes (?:stack frame|spill \w+)", said)) == {"0"}

    functions = functions_of(run(disassembler(), "-sass", binary))
    kernels = {name: code for name, code in functions.items() if "multiply_rows" in name}
    assert len(kernels) == TILES
    by_warpgroup = {name for name in kernels if name.partition("TileShape")[2].count("Lb1E")}
    assert len(by_warpgroup) == 1
    for name, code in kernels.items():
        if name in by_warpgroup and architecture != "90a":
            assert "LDGSTS" not in {name.split(".")[0] for name in code}  # it only stops
            continue
        product = "IGMMA.64x96x32.S8.S8" if name in by_warpgroup else "IMMA.16832.S8.S8"
        assert product in code
        assert any(name.startswith("LDGSTS") and ".128" in name for name in code)
    for code in functions.values():
        operations = {name.split(".")[0] for name in code}
        assert not operations & {"FFMA", "LDL", "STL"}
        assert not [name for name in code if re.match(r"F(ADD|MUL)\S*\.(FTZ|R[MPZ])", name)]
        assert not [name for name in code if re.match(r"MUFU\.(?!RCP$)", name)]  # of indices
