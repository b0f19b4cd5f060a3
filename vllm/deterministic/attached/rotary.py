"""Rotary embeddings of Transformers' models with portable bits.

A model asks its rotary module for cosines and sines and hands them, in each layer, to the function
``apply_rotary_pos_emb`` of its own file. The portable module gives positions and a float32 table
instead, as a `Rotation`, and the function gets a case for that. With tensors, as of models that
are not attached, it does what it did.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from vllm.deterministic.positions.rope_config import frequencies_of
from vllm.fork_kernels.portable.rotary import rotary_frequencies, rotary_table

from ..refusal import attach_refusal as refusal
from .gradients.rotary import Rotation
from .sample import difference, sample_rows

FIRST_POSITIONS = 4096
"""Of a table when it is made; it doubles when a position is beyond."""

_FUNCTION = "apply_rotary_pos_emb"
_ARGUMENTS = ("q", "k", "cos", "sin", "unsqueeze_dim")


class PortableRotaryEmbedding(nn.Module):
    """Makes the rotations of a forward.

    Args:
        frequencies: for each type of layers, None if there is but one: float32 [h] and a scale.
        limit: how many positions there may be; None for any number.
    """

    def __init__(
        self, frequencies: dict[str | None, tuple[torch.Tensor, float]], limit: int | None
    ) -> None:
        super().__init__()
        self._frequencies = frequencies
        self._limit = limit
        self._tables: dict[str | None, torch.Tensor] = {}

    def forward(
        self, x: torch.Tensor, position_ids: torch.Tensor, layer_type: str | None = None
    ) -> tuple[Rotation, Rotation]:
        """Return the rotation twice, for cosines and for sines.

        Args:
            x: [batch, tokens, ...].
            position_ids: int64 [batch or 1, tokens]; below 0 at padding alone, where they are as 0.
            layer_type: whose frequencies.

        Raises:
            ValueError: a position is beyond the longest sequence that was planned for.
        """
        positions = position_ids.expand(x.shape[0], -1).flatten().clamp(min=0)
        table = self._table(layer_type, int(positions.max()) + 1, positions.device)
        rotation = Rotation(positions, table)
        return rotation, rotation

    def _table(self, layer_type: str | None, positions: int, device: torch.device) -> torch.Tensor:
        if self._limit is not None and positions > self._limit:
            raise refusal(
                f"a sequence of {positions} tokens",
                f"its rotary frequencies are those of up to {self._limit} tokens",
            )
        table = self._tables.get(layer_type)
        if table is None or table.shape[0] < positions:
            room = max(FIRST_POSITIONS, 1 << (positions - 1).bit_length())
            frequencies, scale = self._frequencies[layer_type]
            table = rotary_table(frequencies, room, scale).to(device)
            self._tables[layer_type] = table
        return table


def portable_rotary(
    name: str, module: Any, max_length: int | None
) -> PortableRotaryEmbedding | None:
    """Return the portable form of a rotary module; None if `module` is none.

    Args:
        name: of the module.
        module: any.
        max_length: of the longest sequence; None for what the configuration says.

    Raises:
        ValueError: it is one, of a type or with frequencies that have no portable form.
    """
    if not hasattr(module, "compute_default_rope_parameters"):
        return None
    config = module.config
    layer_types = list(module.rope_type) if isinstance(module.rope_type, dict) else [None]
    kinds = [module.rope_type] if layer_types == [None] else list(module.rope_type.values())
    try:
        found = {one: frequencies_of(config, one, max_length=max_length) for one in layer_types}
    except ValueError as error:
        raise refusal(name, str(error).rstrip(".")) from None
    longest = max_length or config.max_position_embeddings
    for (layer_type, (frequencies, _)), kind in zip(found.items(), kinds, strict=True):
        expected = _stock_frequencies(module, kind, layer_type, longest)
        if expected.shape != frequencies.shape or difference(expected, frequencies) > 1e-5:
            raise refusal(name, "its frequencies are not those of its configuration")
    return PortableRotaryEmbedding(found, _limit(kinds, longest, config.max_position_embeddings))


def _limit(kinds: list[str], longest: int, configured: int) -> int | None:
    """Return from which position on other frequencies would be right; None if from nowhere."""
    if "dynamic" in kinds:
        return configured
    return longest if "longrope" in kinds else None


def _stock_frequencies(
    module: Any, kind: str, layer_type: str | None, longest: int
) -> torch.Tensor:
    make = module.compute_default_rope_parameters
    if kind != "default":
        make = ROPE_INIT_FUNCTIONS[kind]
    arguments: dict[str, Any] = {} if layer_type is None else {"layer_type": layer_type}
    length = None if kind == "dynamic" else longest
    frequencies, _ = make(module.config, device=None, seq_len=length, **arguments)
    return frequencies


def use_rotations(module: nn.Module) -> None:
    """Let the file that has the code of a module apply rotations.

    Raises:
        ValueError: its function has other arguments, or rotates other pairs than (j, h + j).
    """
    scope = inspect.unwrap(type(module).forward).__globals__
    stock = scope.get(_FUNCTION)
    if stock is None or hasattr(stock, "stock"):
        return
    _check_pairs(type(module).__name__, stock)
    scope[_FUNCTION] = _with_rotations(stock)


def _with_rotations(stock: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(stock)
    def apply(q: Any, k: Any, cos: Any, sin: Any, unsqueeze_dim: int = 1) -> Any:
        if isinstance(cos, Rotation):
            return cos.of(q, unsqueeze_dim), cos.of(k, unsqueeze_dim)
        return stock(q, k, cos, sin, unsqueeze_dim=unsqueeze_dim)

    apply.stock = stock  # type: ignore[attr-defined]
    return apply


def _check_pairs(name: str, stock: Callable[..., Any]) -> None:
    if tuple(inspect.signature(stock).parameters) != _ARGUMENTS:
        raise refusal(name, f"its {_FUNCTION} has other arguments than {', '.join(_ARGUMENTS)}")
    size, tokens = 16, 3
    table = rotary_table(rotary_frequencies(size), tokens)
    x = sample_rows(2 * tokens * size // 4, torch.float32).view(1, 2, tokens, size)
    cos, sin = (half.repeat(1, 2)[None] for half in table.chunk(2, dim=-1))
    expected, _ = stock(x, x, cos, sin)
    if difference(expected, Rotation(torch.arange(tokens), table).of(x, 1)) > 1e-5:
        raise refusal(name, "its rotary embedding rotates other pairs than (j, h + j)")
