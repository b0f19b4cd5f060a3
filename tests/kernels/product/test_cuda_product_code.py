"""What nvcc makes of the kernels of the portable product, as far as machine code can be read."""

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.kernels.machine_code import machine_code
from tests.kernels.product.emulated_product import TensorCores

ARCHITECTURES = ("80", "86", "89", "90", "90a", "100", "120")
PRODUCTS = {
    TensorCores.INT8: "IMMA.16832.S8.S8",
    TensorCores.BFLOAT16: "HMMA.16816.F32.BF16",
}
TILES = {TensorCores.INT8: 5, TensorCores.BFLOAT16: 5}
"""Kernels of warps that multiply."""
WARPGROUP_TILES = {
    8: "IGMMA.64x64x32.S8.S8",
    12: "IGMMA.64x96x32.S8.S8",
    16: "IGMMA.64x128x32.S8.S8",
}
"""Their tiles of eight rows, and what warpgroups multiply these with."""
WARPGROUP_THREADS = 384


def cores_of(kernel: str) -> TensorCores:
    """What a kernel multiplies with, by the last argument of its TileShape."""
    number = re.search(r"11TensorCoresE(\d)E", kernel)
    assert number, kernel
    return TensorCores(int(number.group(1)))


def tiles_of(kernel: str) -> int:
    """The tiles of rows of a kernel of warpgroups, the first argument of its WarpgroupTile."""
    number = re.search(r"13WarpgroupTileILi(\d+)E", kernel)
    assert number, kernel
    return int(number.group(1))


@pytest.mark.some(3)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_machine_code(shared_folder: Path, architecture: str) -> None:
    """Tensor cores multiply, nothing spills, and no arithmetic is fused or approximate."""
    compiled = machine_code("product", f"sm_{architecture}", shared_folder)
    assert "bytes stack frame" in compiled.said
    assert set(re.findall(r"(\d+) bytes (?:stack frame|spill \w+)", compiled.said)) == {"0"}

    functions, threads = compiled.functions(), compiled.most_threads()
    kernels = {name: code for name, code in functions.items() if "multiply_rows" in name}
    assert Counter(map(cores_of, kernels)) == TILES
    for name, code in kernels.items():
        assert {name for name in code if re.match("[HI]G?MMA", name)} == {PRODUCTS[cores_of(name)]}
        assert any(name.startswith("LDGSTS") and ".128" in name for name in code)
    check_warpgroups(functions, threads, is_whole=architecture == "90a")
    for kernel, code in functions.items():
        operations = {name.split(".")[0] for name in code}
        fused = set() if "by_warpgroups" in kernel else {"FFMA"}
        assert not operations & {*fused, "LDL", "STL"}
        assert not [name for name in code if re.match(r"F(ADD|MUL)\S*\.(FTZ|R[MPZ])", name)]
        assert not [name for name in code if re.match(r"MUFU\.(?!RCP$)", name)]  # of indices


@pytest.mark.parametrize("architecture", ["80", "90a"])
def test_octets_are_moved_at_once(shared_folder: Path, architecture: str) -> None:
    """Eight numbers of 16 bits are one access of memory, where they are whole and in place."""
    functions = machine_code("product", f"sm_{architecture}", shared_folder).functions()
    reading = [code for name, code in functions.items() if "10StoredRowsINS_8Bfloat16" in name]
    assert reading
    assert all(code.count("LDG.E.128") == 1 for code in reading)
    writing = [code for name, code in functions.items() if "multiply_" in name and "STG.E" in code]
    assert writing
    # Of two formats of 16 bits and float32, and partial sums.
    assert all(code.count("STG.E.128") >= 1 + 1 + 2 + 2 for code in writing)


def check_warpgroups(
    functions: dict[str, list[str]], threads: dict[str, int], *, is_whole: bool
) -> None:
    """Code for sm_90a has all of them; elsewhere they only stop, and no launch gets there."""
    kernels = {name: code for name, code in functions.items() if "by_warpgroups" in name}
    assert set(map(tiles_of, kernels)) == set(WARPGROUP_TILES)
    for name, code in kernels.items():
        products = {name for name in code if re.match("[HI]G?MMA", name)}
        operations = {name.split(".")[0] for name in code}
        assert threads[name] == (WARPGROUP_THREADS if is_whole else 1)
        assert products == ({WARPGROUP_TILES[tiles_of(name)]} if is_whole else set())
        assert ("UBLKCP" in operations) == is_whole
