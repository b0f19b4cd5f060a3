"""The CUDA kernels on CPU tensors, by the emulation: what the ops' CUDA implementations launch.

Results are allocated between guards, and begin as garbage.
"""

import ctypes
import tempfile
from ctypes import c_bool, c_double, c_float, c_int, c_int64, c_uint64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

import torch

from tests.kernels.emulation import FORMATS, Guarded, compile_emulation, pointer

FUNCTIONS = (
    *("exp", "exp2", "log", "tanh", "sigmoid", "erf", "relu", "squared_relu", "silu"),
    *("quick_gelu", "gelu", "gelu_tanh"),
)

_keep_folder = tempfile.TemporaryDirectory(prefix="emulated_ops")


@cache
def _library(name: str) -> ctypes.CDLL:
    """Compile once a session."""
    source = Path(__file__).parent / name / f"emulated_{name}.cpp"
    return compile_emulation(source, Path(_keep_folder.name))


class NormParameter(ctypes.Structure):
    _fields_ = (("start", c_void_p), ("format", c_int))


class NormTask(ctypes.Structure):
    _fields_ = (
        *(("x", c_void_p), ("residual", c_void_p), ("result", c_void_p), ("format", c_int)),
        *(("rows", c_int64), ("size", c_int64), ("weight", NormParameter)),
        *(("bias", NormParameter), ("weight_offset", c_float), ("epsilon", c_float)),
        ("is_centred", c_bool),
    )


class RotationTask(ctypes.Structure):
    _fields_ = (
        *(("x", c_void_p), ("format", c_int), ("rows", c_int64), ("heads", c_int64)),
        *(("row_stride", c_int64), ("head_stride", c_int64), ("positions", c_void_p)),
        *(("table", c_void_p), ("table_rows", c_int64), ("half", c_int64)),
        ("is_interleaved", c_bool),
    )


def run(library: str, name: str, *arguments: Any, seed: int = 1) -> None:
    """Call a launcher with tensors, numbers and structures; fail if the emulation found a fault."""
    function = getattr(_library(library), f"run_{name}")
    function.restype = ctypes.c_char_p
    said = function(c_uint64(seed), *(_argument(a) for a in arguments)).decode()
    assert not said, said


def _argument(value: Any) -> Any:
    if value is None or isinstance(value, torch.Tensor):
        return pointer(value)
    if isinstance(value, torch.dtype):
        return c_int(FORMATS[value])
    if isinstance(value, ctypes.Structure):
        return ctypes.byref(value)
    return c_int64(value) if isinstance(value, int) else c_double(value)


def portable_map(x: torch.Tensor, function: str) -> torch.Tensor:
    result = Guarded(tuple(x.shape), x.dtype)
    place = FUNCTIONS.index(function)
    run("rows", "map", x, result.tensor, x.dtype, x.numel(), place)
    return result.checked()


def portable_gated(x: torch.Tensor, function: str) -> torch.Tensor:
    half = x.shape[-1] // 2
    result = Guarded((*x.shape[:-1], half), x.dtype)
    rows = x.numel() // x.shape[-1]
    place = FUNCTIONS.index(function)
    run("rows", "gated", x, result.tensor, x.dtype, rows, half, place)
    return result.checked()


def portable_norm(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    epsilon: float,
    weight_offset: float,
    is_centred: bool,
    *,
    seed: int = 1,
) -> torch.Tensor:
    result = Guarded(tuple(x.shape), x.dtype)
    parameters = [
        NormParameter(pointer(p), FORMATS[p.dtype if p is not None else torch.float32])
        for p in (weight, bias)
    ]
    task = NormTask(
        *(pointer(x), pointer(residual), pointer(result.tensor), FORMATS[x.dtype]),
        *(x.numel() // x.shape[-1], x.shape[-1], *parameters),
        *(weight_offset, epsilon, is_centred),
    )
    run("rows", "norm", task, seed=seed)
    return result.checked()


def portable_rotary_table(frequencies: torch.Tensor, positions: int, scale: float) -> torch.Tensor:
    half = len(frequencies)
    result = Guarded((positions, 2 * half), torch.float32)
    run("rows", "rotary_table", frequencies, result.tensor, positions, half, scale)
    return result.checked()


def portable_rotate(
    x: torch.Tensor, positions: torch.Tensor, table: torch.Tensor, is_interleaved: bool
) -> None:
    task = RotationTask(
        *(pointer(x), FORMATS[x.dtype], *x.shape[:2], *x.stride()[:2], pointer(positions)),
        *(pointer(table), len(table), table.shape[1] // 2, is_interleaved),
    )
    run("rows", "rotate", task)


class LogitRows(ctypes.Structure):
    _fields_ = (
        *(("start", c_void_p), ("format", c_int), ("rows", c_int64), ("stride", c_int64)),
        ("count", c_int64),
    )

    @classmethod
    def of(cls, logits: torch.Tensor) -> "LogitRows":
        rows, count = logits.shape
        return cls(pointer(logits), FORMATS[logits.dtype], rows, logits.stride(0), count)


class Restrictions(ctypes.Structure):
    _fields_ = tuple((n, c_void_p) for n in ("temperatures", "top_k", "top_p", "min_p"))


class RowParts(ctypes.Structure):
    _fields_ = (("count", c_int64), ("memory", c_void_p))


def row_parts(logits: torch.Tensor, multiprocessors: int) -> int:
    """Blocks of threads that share a row on a GPU with so many multiprocessors."""
    parts_of_rows = _library("logits").parts_of_rows
    parts_of_rows.restype = c_int64
    return int(parts_of_rows(ctypes.byref(LogitRows.of(logits)), c_int64(multiprocessors)))


def run_in_parts(
    name: str, logits: torch.Tensor, parts: int, *arguments: Any, seed: int = 1
) -> None:
    """Run a kernel with memory for what the parts of a row find."""
    memory = Guarded((len(logits), 2, parts), torch.int64)
    shared = RowParts(parts, pointer(memory.tensor))
    run("logits", name, LogitRows.of(logits), shared, *arguments, seed=seed)
    memory.checked()


def portable_log_softmax(logits: torch.Tensor, *, parts: int = 1, seed: int = 1) -> torch.Tensor:
    result = Guarded(tuple(logits.shape), torch.float32)
    run_in_parts("log_softmax", logits, parts, result.tensor, seed=seed)
    return result.checked()


def portable_argmax(logits: torch.Tensor, *, parts: int = 1, seed: int = 1) -> torch.Tensor:
    result = Guarded((len(logits),), torch.int64)
    run_in_parts("argmax", logits, parts, result.tensor, seed=seed)
    return result.checked()


def selections(rows: int) -> Guarded:
    """Memory for the search of each row's last logit that stays."""
    words_of_selection = _library("logits").words_of_selection
    words_of_selection.restype = c_int64
    memory = Guarded((rows, words_of_selection()), torch.int64)
    memory.tensor.zero_()
    return memory


def portable_top_k(
    logits: torch.Tensor, k: int, *, parts: int = 1, seed: int = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    words_of_top_k = _library("logits").words_of_top_k
    words_of_top_k.restype = c_int64
    words = words_of_top_k(c_int64(k))
    memory = Guarded((len(logits), words), torch.int64)
    values = Guarded((len(logits), k), torch.float32)
    indices = Guarded((len(logits), k), torch.int64)
    searched = selections(len(logits))
    results = (values.tensor, indices.tensor, memory.tensor, searched.tensor)
    run_in_parts("top_k", logits, parts, k, *results, seed=seed)
    memory.checked()
    searched.checked()
    return values.checked(), indices.checked()


def portable_filter(
    logits: torch.Tensor,
    temperatures: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    *,
    parts: int = 1,
    seed: int = 1,
) -> torch.Tensor:
    result = Guarded(tuple(logits.shape), torch.float32)
    restrictions = Restrictions(*(pointer(t) for t in (temperatures, top_k, top_p, min_p)))
    searched = selections(len(logits))
    run_in_parts("filter", logits, parts, restrictions, result.tensor, searched.tensor, seed=seed)
    searched.checked()
    return result.checked()


def launches_of_logits() -> int:
    """Return how many launches the last operation on logits was."""
    launches = _library("logits").launches_of_last_run
    launches.restype = c_int64
    return int(launches())


def portable_draw(
    logits: torch.Tensor, seeds: torch.Tensor, positions: torch.Tensor, *, parts: int = 1
) -> torch.Tensor:
    result = Guarded((len(logits),), torch.int64)
    run_in_parts("draw", logits, parts, seeds, positions, result.tensor)
    return result.checked()


class CachePages(ctypes.Structure):
    _fields_ = (
        *(("start", c_void_p), ("pages", c_int64), ("page_stride", c_int64)),
        *(("head_stride", c_int64), ("page_tiles", c_int64), ("head_size", c_int64)),
    )

    @classmethod
    def of(cls, cache: torch.Tensor, size: int) -> "CachePages":
        tile_bytes = 16 * (4 * size + 2)
        tiles = cache.shape[2] // tile_bytes
        return cls(pointer(cache), len(cache), *cache.stride()[:2], tiles, size)


class TokenRows(ctypes.Structure):
    _fields_ = (
        *(("start", c_void_p), ("format", c_int), ("row_stride", c_int64)),
        ("head_stride", c_int64),
    )

    @classmethod
    def of(cls, x: torch.Tensor) -> "TokenRows":
        return cls(pointer(x), FORMATS[x.dtype], *x.stride()[:2])


class AppendTask(ctypes.Structure):
    _fields_ = (
        *(("keys", TokenRows), ("values", TokenRows), ("cache", CachePages)),
        *(("slots", c_void_p), ("tokens", c_int64), ("heads", c_int64)),
    )


class PagedAttention(ctypes.Structure):
    _fields_ = (
        *(("query", TokenRows), ("result", c_void_p), ("queries", c_int64), ("heads", c_int64)),
        *(("key_heads", c_int64), ("cache", CachePages), ("pages", c_void_p)),
        *(("query_starts", c_void_p), ("lengths", c_void_p), ("sequences", c_int64)),
        *(("width", c_int64), ("scale", c_float), ("soft_cap", c_float), ("window", c_int64)),
        *(("slopes", c_void_p), ("sinks", c_void_p), ("has_warpgroups", c_bool)),
    )


def portable_append(
    keys: torch.Tensor, values: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor
) -> None:
    places = CachePages.of(cache, keys.shape[2])
    task = AppendTask(
        *(TokenRows.of(keys), TokenRows.of(values), places, pointer(slots), *keys.shape[:2])
    )
    run("attention", "append", task)


def portable_attention(
    query: torch.Tensor,
    cache: torch.Tensor,
    pages: torch.Tensor,
    query_starts: torch.Tensor,
    lengths: torch.Tensor,
    *,
    scale: float,
    window: int = 0,
    soft_cap: float = 0.0,
    slopes: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    splits: int | None = None,
    as_prompts: bool = False,
    seed: int = 1,
) -> torch.Tensor:
    """With as many splits as the launcher chooses, or as are given; or by the kernel of prompts."""
    result = Guarded(tuple(query.shape), query.dtype)
    task = PagedAttention(
        *(TokenRows.of(query), pointer(result.tensor), *query.shape[:2], cache.shape[1]),
        *(CachePages.of(cache, query.shape[2]), pointer(pages), pointer(query_starts)),
        *(pointer(lengths), *pages.shape, scale, soft_cap, window),
        *(pointer(slopes), pointer(sinks), False),
    )
    if as_prompts:
        run("attention", "prompt_attention", task, seed=seed)
        return result.checked()
    library = _library("attention")
    library.splits_of.restype = library.part_floats_of.restype = c_int64
    splits = splits or library.splits_of(ctypes.byref(task))
    floats = library.part_floats_of(ctypes.byref(task), c_int64(splits))
    parts = Guarded((floats,), torch.float32)
    run("attention", "attention", task, splits, parts.tensor, seed=seed)
    parts.checked()
    return result.checked()


def attention_work() -> tuple[int, int]:
    """Return how many blocks of threads the last attention was, and how often these waited."""
    library = _library("attention")
    library.blocks_run.restype = library.waits_of_threads.restype = c_int64
    return int(library.blocks_run()), int(library.waits_of_threads())
