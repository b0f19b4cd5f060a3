"""Machine code is taken apart into its loops, and a pass has the instructions that it must have."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from benchmarks.gpu.counts import BEGIN, END, PASSES, TIMES
from benchmarks.gpu.machine_code import functions_of, properties_of
from benchmarks.gpu.passes import KERNELS, MATRICES, MULTIPROCESSORS, SEGMENTS, Pass, counted
from benchmarks.gpu.predictions import TILES, TILES_OF_ROWS, choose_splits, parts_of_rows
from benchmarks.gpu.table import PAGE, markdown
from tests.kernels.product.emulated_product import EmulatedProduct, Gpu, TensorCores

WRITTEN = """
.text._Z4loopv:
        /*0000*/                   MOV R1, c[0x0][0x28] ;
.L_x_2:
        /*0010*/                   IADD3 R2, R2, 0x1, RZ ;
.L_x_0:
        /*0020*/                   IMMA.16832.S8.S8 R4, R4.ROW, R8.COL, R4 ;
        /*0030*/               @P1 BRA `(.L_x_0) ;
        /*0040*/              @!P0 BRA `(.L_x_1) ;
        /*0050*/                   FADD R3, R3, R3 ;
        /*0060*/                   FADD R3, R3, R3 ;
        /*0070*/                   BRA `(.L_x_3) ;
.L_x_1:
        /*0080*/                   FMUL R3, R3, R3 ;
.L_x_3:
        /*0090*/               BRA.U !UP0, `(.L_x_2) ;
        /*00a0*/                   EXIT ;
.L_x_4:
        /*00b0*/                   BRA `(.L_x_4) ;
"""


def test_loops_and_the_ways_through_them() -> None:
    (function,) = functions_of(WRITTEN).values()
    (outer,) = function.loops()  # the one behind the end is never reached
    (inner,) = outer.inner
    assert not inner.inner
    assert [one.address for one in function.blocks[inner.head]] == [0x20, 0x30]
    shortest = function.way(outer, [3], longest=False)
    longest = function.way(outer, [3], longest=True)
    tensor = {"IMMA.16832.S8.S8": 3, "IADD3": 1, "BRA.U": 1}
    assert shortest == Counter(tensor | {"FMUL": 1, "BRA": 3 + 1})
    assert longest == Counter(tensor | {"FADD": 2, "BRA": 3 + 1 + 1})
    with pytest.raises(ValueError, match="1 inner loops, not 2"):
        function.way(outer, [1, 1], longest=True)


def test_what_the_assembler_says() -> None:
    said = (
        "ptxas info    : Compiling entry function '_Z1av' for 'sm_90a'\n"
        "ptxas info    : Used 166 registers, used 1 barriers, 11424 bytes smem\n"
        "ptxas info    : Compiling entry function '_Z1bv' for 'sm_90a'\n"
        "ptxas info    : Used 8 registers, used 0 barriers\n"
    )
    assert properties_of(said) == [("_Z1av", 166, 11424), ("_Z1bv", 8, 0)]


@pytest.fixture(scope="module")
def passes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pass]:
    return counted(tmp_path_factory.mktemp("counts"))


def test_products_are_all_counted(passes: dict[str, Pass]) -> None:
    """A tensor core's instruction has 16 outputs, 8 rows and 32 channels, a warpgroup's 64 rows and
    64, 96 or 128 columns."""
    prompt, simple, many, few = (
        passes[key].operations for key in ("prompt", "simple", "128 rows", "8 rows")
    )
    keys, values = 2 * 4 * 4, 4 * 2 * 4
    assert keys + values <= simple["IMMA"] <= keys + values + 8  # and a step that is left over
    keys, values = 4 * 4, 4 * 2 * 2
    assert prompt["IGMMA"] == keys + values
    for rows in (64, 96):
        assert many["IGMMA"] == passes[f"{rows} rows"].operations["IGMMA"] == 8 * 3
    assert 2 * few["IMMA"] == passes["16 rows"].operations["IMMA"] == 2 * 4 * 3


def test_a_pass_takes_what_its_busiest_unit_takes(passes: dict[str, Pass]) -> None:
    for one in passes.values():
        units = one.units()
        assert one.together() == max(units.values())
        assert one.together() <= one.expected() <= one.apart() <= sum(units.values())
        others = sum(one.others.values())
        assert units["issue"] == pytest.approx(one.instructions * one.kernel.warps / 4 + others)


def test_products_are_shared_out_as_the_kernels_do_it(tmp_path: Path) -> None:
    library = EmulatedProduct.compile(tmp_path)
    gpu = Gpu(MULTIPROCESSORS, 228, TensorCores.INT8_WARPGROUPS)
    for rows, tile in TILES_OF_ROWS.items():
        parts = parts_of_rows(rows)
        for inputs, outputs in MATRICES:
            plans = library.plans((outputs, inputs, SEGMENTS), rows, gpu)
            own = TILES[tile]
            assert [plan.tile for plan in plans] == [(tile, own.outputs)] * len(parts)
            tiles = [-(-part // tile) * outputs // own.outputs for part in parts]
            splits = [choose_splits(count, MULTIPROCESSORS * own.resident) for count in tiles]
            assert [plan.splits for plan in plans] == splits
            assert [plan.parts for plan in plans] == [
                a * b for a, b in zip(tiles, splits, strict=True)
            ]


def test_blocks_of_threads_that_are_there_at_once(passes: dict[str, Pass]) -> None:
    for rows, tile in TILES.items():
        assert passes[f"{rows} rows"].resident_blocks() == tile.resident


def test_prompts_are_within_their_budget(passes: dict[str, Pass]) -> None:
    """350 instructions for a quarter of 16 rows and 64 tokens, most of whose passes are the short
    ones; one copy of a word for each that four warps bring."""
    prompt = passes["prompt"]
    assert sum(prompt.shortest.values()) <= 4 * 350
    assert prompt.others["LDGSTS"] == 64 * 4 * 128 / 4 / 4 / 32


def test_the_tables_of_the_documentation() -> None:
    page = PAGE.read_text()
    tables = page[page.index(BEGIN) : page.index(END)]
    for heads in (PASSES, TIMES):
        assert markdown(heads, []) in tables
    for kernel in KERNELS.values():
        assert f"| {kernel.what} |" in tables
