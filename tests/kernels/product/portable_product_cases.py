"""Inputs for the tests of the portable product, made from integers: every machine has the same."""

from dataclasses import dataclass

import numpy as np
import torch

from tests.kernels.portable_cases import integers

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def bell(rows: int, columns: int, seed: int) -> torch.Tensor:
    """float32 [rows, columns] about normal: sums of four numbers of 16 bits, so exact."""
    parts = integers(4 * rows * columns, seed).reshape(4, -1).astype(np.int64) >> 16
    centred = np.sum(parts, axis=0) - 2 * 0xFFFF
    return torch.from_numpy((centred / 2.0**15).astype(np.float32)).view(rows, columns)


def powers(rows: int, columns: int, least: int, greatest: int, seed: int) -> torch.Tensor:
    """float32 [rows, columns] of powers of two in a range."""
    words = integers(rows * columns, seed)
    exponents = words.astype(np.int64) % (greatest - least + 1) + least
    return torch.from_numpy(np.ldexp(1.0, exponents).astype(np.float32)).view(rows, columns)


def outlier_rows(rows: int, columns: int, seed: int) -> torch.Tensor:
    """Like `bell`, with a few channels that are 64 to 1024 times larger."""
    x = bell(rows, columns, seed)
    channels = torch.from_numpy(integers(5, seed + 1).astype(np.int64) % columns)
    x[:, channels] *= torch.tensor([64.0, 128.0, 256.0, 512.0, 1024.0])
    return x


def wild_rows(rows: int, columns: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Magnitudes of 2^-60 to 2^60, or float16's own; zeros, subnormals, ties and largest digits."""
    reach = 12 if dtype == torch.float16 else 60
    x = bell(rows, columns, seed) * powers(rows, columns, -reach, reach - 2, seed + 1)
    x[:, ::7] = 0.0
    x[:, 1::13] = torch.finfo(dtype).tiny / 2
    patterns = [
        torch.zeros(columns),
        torch.full((columns,), 127.0 / 64),  # where the exponent changes
        torch.full((columns,), -127.0 / 64 + 2.0**-12),
        torch.arange(columns) % 512 - 255.5,  # halfway between integers, if the next is there
        torch.arange(columns) * 128.0 % 32512,  # halfway between high digits
        -(torch.arange(columns) * 128.0 % 32512),
        torch.full((columns,), torch.finfo(dtype).tiny),
    ]
    for row, pattern in zip(range(0, rows, 2), patterns, strict=False):
        x[row] = pattern
    if rows > 6:
        x[6, 0] = 16384.0
    return x


def lawless_rows(rows: int, columns: int, seed: int) -> torch.Tensor:
    """Like `bell`, but most rows have one number that is out of range, or just in range."""
    x = bell(rows, columns, seed)
    edge = 32512.0 * 2.0**50
    odd = [torch.nan, torch.inf, -torch.inf, edge, -edge, 2.0**100, edge * (1 - 2.0**-24)]
    for row, number in enumerate(odd[:rows]):
        x[row, (row * 37) % columns] = number
    return x


@dataclass(frozen=True)
class Case:
    """A product: the shape, the dtypes, and what kind of numbers.

    Attributes:
        rows: of activations.
        outputs: rows of the weight.
        inputs: columns of both.
        x: dtype of the activations and of the result.
        weight: of the weight and the bias.
        kind: plain, outliers, wild or lawless.
        is_equalised: whether the weight's channels have exponents.
        has_bias: whether there is one.
    """

    rows: int
    outputs: int
    inputs: int
    x: str = "bfloat16"
    weight: str = "bfloat16"
    kind: str = "plain"
    is_equalised: bool = True
    has_bias: bool = False

    def make_x(self, seed: int = 1) -> torch.Tensor:
        """Activations [rows, inputs]."""
        dtype = DTYPES[self.x]
        if self.kind == "outliers":
            return outlier_rows(self.rows, self.inputs, seed).to(dtype)
        if self.kind == "wild":
            return wild_rows(self.rows, self.inputs, dtype, seed).to(dtype)
        if self.kind == "lawless":
            return lawless_rows(self.rows, self.inputs, seed).to(dtype)
        return bell(self.rows, self.inputs, seed).to(dtype)

    def make_weight(self, seed: int = 5) -> torch.Tensor:
        """A weight [outputs, inputs] whose channels have different magnitudes."""
        dtype = DTYPES[self.weight]
        weight = bell(self.outputs, self.inputs, seed) * 2.0**-5
        weight *= powers(1, self.inputs, -4, 3, seed + 1)
        if self.kind == "wild":
            reach = 8 if dtype == torch.float16 else 36
            weight *= powers(self.outputs, self.inputs, -reach, reach - 6, seed + 2)
            weight[:, 3::11] = 0.0
            weight[0] = 0.0
            weight[:, -1] = torch.finfo(dtype).tiny / 2
        return weight.to(dtype)

    def make_bias(self, seed: int = 9) -> torch.Tensor | None:
        """A bias [outputs], with numbers around where they begin to count."""
        if not self.has_bias:
            return None
        dtype = DTYPES[self.weight]
        bias = bell(1, self.outputs, seed)[0]
        if dtype != torch.float16:
            bias[::5] = 2.0**-103
            bias[1::5] = -(2.0**-103) * (1 - 2.0**-8)
            bias[2::5] = 2.0**-130
        return bias.to(dtype)


CASES = (
    Case(1, 1, 1),
    Case(3, 17, 7, has_bias=True),
    Case(5, 40, 64),
    Case(2, 33, 100, "float16", "float16", "wild", has_bias=True),
    Case(13, 70, 600, kind="outliers", has_bias=True),
    Case(14, 50, 2100, "bfloat16", "bfloat16", "wild"),
    Case(15, 50, 2100, "float32", "float32", "wild", is_equalised=False, has_bias=True),
    Case(7, 20, 3000, "float32", "bfloat16", "outliers"),
    Case(9, 18, 1026, "float16", "bfloat16", is_equalised=False),
    Case(9, 21, 264, "float32", "float16", "lawless", has_bias=True),
    Case(8, 16, 512, "bfloat16", "float32", "lawless", is_equalised=False),
)
