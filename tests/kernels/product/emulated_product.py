"""The ops of the portable product as their CUDA kernels compute them, emulated on a CPU."""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

import torch

from tests.kernels.emulation import FORMATS, Guarded, compile_emulation, pointer
from vllm.fork_kernels.portable.product import PackedWeight

SOURCE = Path(__file__).with_name("emulated_product.cpp")


class TensorCores(IntEnum):
    """``vllm_fork::TensorCores``."""

    INT8 = 0
    INT8_WARPGROUPS = 1
    BFLOAT16 = 2


@dataclass(frozen=True)
class Gpu:
    """What of a GPU decides how a product is shared out."""

    processors: int
    shared_kib: int  # of each
    cores: TensorCores


@dataclass(frozen=True)
class ProductPlan:
    """How rows that are multiplied at once are shared out.

    Attributes:
        tile: its rows and outputs.
        splits: blocks of threads that share the segments of a tile.
        parts: tiles times splits.
        blocks: of threads, each of which computes one part or several.
        pending: floats of the sums that wait for those of later segments.
    """

    tile: tuple[int, int]
    splits: int
    parts: int
    blocks: int
    pending: int


@dataclass(frozen=True)
class EmulatedProduct:
    """Like the functions of ``vllm.fork_kernels.portable.product``.

    Attributes:
        library: what emulated_product.cpp compiles to.
    """

    library: ctypes.CDLL

    @classmethod
    def compile(cls, folder: Path) -> "EmulatedProduct":
        """Compile the kernels with g++."""
        library = compile_emulation(SOURCE, folder)
        for name in ("failure", "statistics", "pack", "unpack", "product", "sum"):
            getattr(library, name).restype = ctypes.c_char_p
        library.packed_bytes.restype = ctypes.c_int64
        library.workspace_bytes.restype = ctypes.c_int64
        library.chosen_tensor_cores.restype = ctypes.c_int64
        library.has_warpgroups.restype = ctypes.c_int64
        library.rows_multiplied_at_once.restype = ctypes.c_int64
        return cls(library)

    def _call(self, name: str, *arguments: Any) -> None:
        function: Callable[..., bytes] = getattr(self.library, name)
        failure = function(*map(_argument, arguments))
        assert failure == b"", failure.decode()

    def tensor_cores(self, major: int, has_warpgroups: bool, asked: str) -> TensorCores:
        """Return what a GPU of this compute capability multiplies with, if that is asked for."""
        numbers = (ctypes.c_int64(major), ctypes.c_int64(has_warpgroups))
        chosen = self.library.chosen_tensor_cores(*numbers, asked.encode())
        if chosen < 0:
            raise RuntimeError(self.library.failure().decode())
        return TensorCores(chosen)

    def plans(self, shape: tuple[int, int, int], rows: int, gpu: Gpu) -> list[ProductPlan]:
        """Return the plan of each part of the rows that a GPU multiplies at once.

        Args:
            shape: of the weight: outputs, inputs and segments.
            rows: at least 1.
            gpu: not the emulated one.
        """
        at_once = self.library.rows_multiplied_at_once(*map(ctypes.c_int64, (rows, gpu.cores)))
        counts = [min(at_once, rows - first) for first in range(0, rows, at_once)]
        return [self._plan(shape, count, gpu) for count in counts]

    def _plan(self, shape: tuple[int, int, int], rows: int, gpu: Gpu) -> ProductPlan:
        found = (ctypes.c_int64 * 6)()
        sizes = (*shape, rows, gpu.processors, gpu.shared_kib * 1024, gpu.cores)
        self.library.plan(*map(ctypes.c_int64, sizes), found)
        return ProductPlan((found[0], found[1]), *found[2:])

    def statistics(self, weight: torch.Tensor) -> torch.Tensor:
        """Return the channels' statistics."""
        sums = torch.zeros(weight.shape[1], dtype=torch.int64)
        self._call("statistics", *weight.shape, weight, FORMATS[weight.dtype], sums)
        return sums

    def pack(
        self, weight: torch.Tensor, exponents: torch.Tensor | None, segments: int
    ) -> tuple[PackedWeight, int]:
        """Return the weight in the layout of a GPU, and the first output that is refused or -1."""
        shape = *weight.shape, segments
        packed = _bytes(self.library.packed_bytes(*map(ctypes.c_int64, shape)))
        refused = torch.tensor([-1])
        self._call("pack", *shape, weight, FORMATS[weight.dtype], exponents, packed.tensor, refused)
        return PackedWeight(packed.checked(), exponents, *shape), int(refused)

    def unpack(self, weight: PackedWeight) -> torch.Tensor:
        """Return the numbers that a packed weight stands for."""
        result = torch.full((weight.out_features, weight.in_features), torch.nan)
        self._call("unpack", *_shape(weight), weight.packed, weight.exponents, result)
        return result

    def product(
        self,
        x: torch.Tensor,
        weight: PackedWeight,
        bias: torch.Tensor | None = None,
        dtype: torch.dtype | None = None,
        *,
        processors: int = 2,
        cores: TensorCores = TensorCores.INT8,
        splits: int = 0,
        seed: int = 1,
    ) -> torch.Tensor:
        """Return the product.

        Args:
            x: rows.
            weight: from `pack`.
            bias: or None.
            dtype: of the result, that of `x` if None.
            processors: multiprocessors of the GPU.
            cores: what they multiply digits with.
            splits: blocks of threads that share the segments of an output; 0 to choose.
            seed: of the order in which threads run.
        """
        result = Guarded((len(x), weight.out_features), dtype or x.dtype)
        sizes = *_shape(weight), len(x), processors, cores, splits
        workspace = _bytes(self.library.workspace_bytes(*map(ctypes.c_int64, sizes)))
        arguments = (x, x.stride(0), FORMATS[x.dtype], weight.packed, weight.exponents)
        with_bias = (bias, 0 if bias is None else FORMATS[bias.dtype])
        target = (result.tensor, FORMATS[result.tensor.dtype], workspace.tensor)
        self._call("product", *sizes, seed, *arguments, *with_bias, *target)
        workspace.checked()
        return result.checked()

    def sum(
        self, partials: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype
    ) -> torch.Tensor:
        """Return the sum of partial sums."""
        result = Guarded(tuple(partials.shape[1:]), dtype)
        with_bias = (bias, 0 if bias is None else FORMATS[bias.dtype])
        self._call("sum", *partials.shape, partials, *with_bias, result.tensor, FORMATS[dtype])
        return result.checked()


def _shape(weight: PackedWeight) -> tuple[int, int, int]:
    return weight.out_features, weight.in_features, weight.segments


def _argument(value: Any) -> Any:
    if isinstance(value, int):
        return ctypes.c_int64(value)
    return pointer(value)


def _bytes(count: int) -> Guarded:
    return Guarded((count,), torch.uint8)
