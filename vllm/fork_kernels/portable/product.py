"""The product of linear layers with the same bits on every machine, batch and number of ranks.

``docs/numerics/products.md`` is the specification: digits of 8 bits whose products are summed
exactly in blocks of 256 input channels, and float32 sums across blocks in a fixed order. A row of
the result depends on that row, the weight and the bias alone.

A weight is packed once, when a model is loaded::

    exponents = equalising_exponents(channel_statistics(q) + channel_statistics(k))
    q = pack_weight(q, exponents)
    k = pack_weight(k, exponents)
    y = portable_product(x, q, bias)

On several ranks, a layer whose input channels are split gives partial sums, float32, and
`sum_partials` makes of them what one rank would have computed::

    part = pack_weight(weight_of_this_rank, exponents_of_this_rank, parts=num_ranks)
    partial = portable_product(x_of_this_rank, part, dtype=torch.float32)
    y = sum_partials(torch.stack(partials_of_all_ranks), bias, torch.bfloat16)

On a GPU the digits are multiplied as int8 or, on compute capability 10.x, as bfloat16.
``VLLM_FORK_CUDA_TENSOR_CORES=int8``, ``mma`` (int8 without Hopper's warpgroups, in attention, too)
or ``bfloat16`` chooses by hand, to compare their speed: the bits are the same, and so is the packed
weight. The first product of a process reads the variable;
another value is a RuntimeError.
"""

import math
from dataclasses import dataclass

import torch

from vllm.fork_kernels import library
from vllm.fork_kernels.operators import specified, specified_untraced
from vllm.fork_kernels.portable import prepared_digits

__all__ = [
    "PackedWeight",
    "channel_statistics",
    "equalising_exponents",
    "has_kernels",
    "pack_weight",
    "portable_product",
    "repack_weight",
    "sum_partials",
    "unpack_weight",
]

MOST_SEGMENTS = 8
"""Cards that can split the input channels of one layer, at most."""

_SURELY_PACKED = 2.0**28  # below it a number is, equalised by at most 2^16, no reason to refuse


@specified
def _channel_statistics(weight: torch.Tensor) -> torch.Tensor:
    return weight.new_empty(weight.shape[1], dtype=torch.int64)


@specified
def _equalising_exponents(statistics: torch.Tensor) -> torch.Tensor:
    return statistics.new_empty(statistics.shape[0], dtype=torch.int8)


@specified
def _repack_weight(
    packed: torch.Tensor, weight: torch.Tensor, exponents: torch.Tensor | None, segments: int
) -> None:
    return None


@specified
def _unpack_weight(
    packed: torch.Tensor,
    exponents: torch.Tensor | None,
    outputs: int,
    inputs: int,
    segments: int,
) -> torch.Tensor:
    return packed.new_empty(outputs, inputs, dtype=torch.float32)


@specified
def _portable_product(
    x: torch.Tensor,
    packed: torch.Tensor,
    exponents: torch.Tensor | None,
    bias: torch.Tensor | None,
    outputs: int,
    segments: int,
    dtype: torch.dtype,
) -> torch.Tensor:
    return x.new_empty(x.shape[0], outputs, dtype=dtype)


@specified
def _sum_partials(
    partials: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype
) -> torch.Tensor:
    return partials.new_empty(partials.shape[1:], dtype=dtype)


_pack_weight = specified_untraced("pack_weight")
_portable_digits_product = specified_untraced("portable_digits_product")


def has_kernels(device: torch.device) -> bool:
    """Whether portable operations can be computed on a device."""
    return library.has_kernel("portable_product", device)


@dataclass(frozen=True)
class PackedWeight:
    """A weight as the product reads it.

    Attributes:
        packed: uint8 [any], as laid out in ``csrc/portable/product_layout.h``, on a GPU in
            ``csrc/cuda/product/digit_tiles.cuh``; starts at a multiple of 64 bytes. A CPU needs
            that for its vectors and tiles; a GPU would need 16, and takes no less either.
        exponents: int8 [in_features], of the input channels; None if all are 0.
        out_features: rows of the weight.
        in_features: its columns.
        segments: of the columns, whose sums are added by halves.
    """

    packed: torch.Tensor
    exponents: torch.Tensor | None
    out_features: int
    in_features: int
    segments: int


def channel_statistics(weight: torch.Tensor) -> torch.Tensor:
    """Return what the magnitudes of each input channel are, in integers.

    Add the statistics of weights that share an input, and of the parts of a weight whose rows are
    split; concatenate those of the parts of a weight whose columns are split.

    Args:
        weight: float32, bfloat16 or float16 [out_features, in_features], contiguous.

    Returns:
        int64 [in_features].

    Raises:
        RuntimeError: the dtype or the shape is wrong.
    """
    return _channel_statistics(weight)


def equalising_exponents(statistics: torch.Tensor) -> torch.Tensor:
    """Return the exponents that bring the input channels of weights to equal magnitudes.

    Args:
        statistics: int64 [in_features], of all input channels of the whole layer.

    Returns:
        int8 [in_features], in -16..16. A rank that has some of the channels takes theirs.

    Raises:
        RuntimeError: the dtype or the shape is wrong, or a number is negative.
    """
    return _equalising_exponents(statistics)


def pack_weight(
    weight: torch.Tensor, exponents: torch.Tensor | None = None, *, parts: int = 1
) -> PackedWeight:
    """Pack a weight, or one of the equal parts of a weight whose input channels are split.

    Args:
        weight: float32, bfloat16 or float16 [out_features, in_features], contiguous.
        exponents: int8 [in_features], from `equalising_exponents`; None for all 0.
        parts: how many such weights side by side are the layer's whole weight; 1, 2, 4 or 8.

    Returns:
        The weight in about as many bytes as it has in bfloat16.

    Raises:
        ValueError: the whole layer's input channels cannot be split into so many parts.
        RuntimeError: a dtype or a shape is wrong, an exponent is out of range, or the weight has a
            number that is not finite or, equalised, is about 2^45 or more.
    """
    in_features = weight.shape[-1]
    whole = math.gcd(in_features * parts, MOST_SEGMENTS)
    if parts < 1 or whole % parts != 0:
        raise ValueError(
            f"{in_features * parts} input channels are {whole} segments, "
            f"which cannot be split into {parts} equal parts"
        )
    segments = whole // parts
    packed = _pack_weight(weight, exponents, segments)
    return PackedWeight(packed, exponents, weight.shape[0], in_features, segments)


def repack_weight(
    old: PackedWeight, weight: torch.Tensor, exponents: torch.Tensor | None = None
) -> None:
    """Pack another weight into the memory of a packed one.

    No other memory is taken, unless a number of the weight is 2^28 or more, or is refused.

    Args:
        old: from `pack_weight`, of a weight of the same shape; it is the new weight's afterwards.
        weight: as `pack_weight` takes it.
        exponents: likewise; None if `old` was packed without them.

    Raises:
        ValueError: only one of the two has exponents.
        RuntimeError: as `pack_weight`; `old` is as it was.
    """
    if (old.exponents is None) != (exponents is None):
        raise ValueError("A weight that was packed with exponents is packed again with exponents.")
    if torch.linalg.vector_norm(weight, torch.inf).item() < _SURELY_PACKED:
        _repack_weight(old.packed, weight, exponents, old.segments)
    else:
        old.packed.copy_(_pack_weight(weight, exponents, old.segments))
    if old.exponents is not None and exponents is not None:
        old.exponents.copy_(exponents)


def unpack_weight(weight: PackedWeight) -> torch.Tensor:
    """Return the numbers that a packed weight stands for, float32 [out_features, in_features].

    They are the weight's own to about 15 bits of the largest in their block.
    """
    return _unpack_weight(
        weight.packed,
        weight.exponents,
        weight.out_features,
        weight.in_features,
        weight.segments,
    )


def portable_product(
    x: torch.Tensor,
    weight: PackedWeight,
    bias: torch.Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Multiply rows with a weight: ``torch.nn.functional.linear`` with specified bits.

    Args:
        x: float32, bfloat16 or float16 [..., in_features]; the last dimension is contiguous.
        weight: from `pack_weight`.
        bias: float32, bfloat16 or float16 [out_features].
        dtype: of the result, one of these; that of ``x`` if None.

    Returns:
        [..., out_features]. A row is NaN if one of its activations is NaN, infinite or, equalised,
        about 2^65 or more.

    Raises:
        RuntimeError: a shape or a dtype is wrong.
    """
    if x.shape[-1] != weight.in_features:
        raise RuntimeError(
            f"portable_product: x must have {weight.in_features} columns, as the weight has, "
            f"but has {x.shape[-1]}."
        )
    dtype = x.dtype if dtype is None else dtype
    digits = prepared_digits.of(x, weight)
    if digits is None:
        product = _portable_product(
            x.flatten(0, -2) if x.dim() > 2 else x,
            weight.packed,
            weight.exponents,
            bias,
            weight.out_features,
            weight.segments,
            dtype,
        )
    else:
        product = _portable_digits_product(
            digits,
            weight.packed,
            bias,
            x.numel() // weight.in_features,
            weight.out_features,
            weight.in_features,
            weight.segments,
            dtype,
        )
    return product.view(*x.shape[:-1], weight.out_features) if x.dim() > 2 else product


def sum_partials(
    partials: torch.Tensor, bias: torch.Tensor | None = None, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Add the products of the equal parts of a weight whose input channels are split.

    Args:
        partials: float32 [parts, n, out_features], contiguous; `portable_product` of each part in
            float32 and without bias, in the order of the input channels. 1, 2, 4 or 8 parts.
        bias: float32, bfloat16 or float16 [out_features].
        dtype: of the result, one of these.

    Returns:
        [n, out_features], with the bits of the product with the whole weight.

    Raises:
        RuntimeError: a shape or a dtype is wrong.
    """
    return _sum_partials(partials, bias, dtype)
