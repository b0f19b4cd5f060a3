"""Rotary embeddings of Transformers' models with portable bits.

A model asks its rotary module for cosines and sines and hands them, in each layer, to a function
of its own file (`_FUNCTIONS`). The portable module gives positions and a float32 table instead, as
a `Rotation`, and the function gets a case for that. Which pairs it rotates is found by asking it.
With tensors, as of models that are not attached, it does what it did.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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

_FUNCTIONS = ("apply_rotary_pos_emb", "apply_rotary_pos_emb_interleave")
_COMPLEX_FUNCTION = "apply_rotary_emb"
"""With cosines and sines as complex numbers, which rotate the pairs (2j, 2j + 1)."""

_ARGUMENTS = ("q", "k", "cos", "sin")
_COMPLEX_ARGUMENTS = ("xq", "xk", "freqs_cis")


class PortableRotaryEmbedding(nn.Module):
    """Makes the rotations of a forward.

    Args:
        frequencies: for each type of layers, None if there is but one: float32 [h] and a scale.
        limit: how many positions there may be; None for any number.
        is_complex: whether the model expects cosines and sines in one tensor.
    """

    def __init__(
        self,
        frequencies: dict[str | None, tuple[torch.Tensor, float]],
        limit: int | None,
        *,
        is_complex: bool = False,
    ) -> None:
        super().__init__()
        self._frequencies = frequencies
        self._limit = limit
        self._is_complex = is_complex
        self._tables: dict[str | None, torch.Tensor] = {}

    def forward(
        self, x: torch.Tensor, position_ids: torch.Tensor, layer_type: str | None = None
    ) -> Rotation | tuple[Rotation, Rotation]:
        """Return the rotation, twice where cosines and sines are expected.

        Args:
            x: [batch, tokens, ...].
            position_ids: int64 [batch or 1, tokens]; below 0 at padding alone, where they are as 0.
                Those of height and width may come with them, [3, batch or 1, tokens].
            layer_type: whose frequencies.

        Raises:
            ValueError: a position is beyond the longest sequence that was planned for, or positions
                are those of a picture.
        """
        positions = _of_text(position_ids).expand(x.shape[0], -1).flatten().clamp(min=0)
        table = self._table(layer_type, int(positions.max()) + 1, positions.device)
        rotation = Rotation(positions, table)
        return rotation if self._is_complex else (rotation, rotation)

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


def _of_text(position_ids: torch.Tensor) -> torch.Tensor:
    """Return the positions of tokens, where text has them three times.

    Raises:
        ValueError: height and width have others.
    """
    if position_ids.dim() < 3:
        return position_ids
    if not bool((position_ids == position_ids[0]).all()):
        raise refusal("positions of pictures", "only those of text are specified")
    return position_ids[0]


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
    limit = _limit(kinds, longest, config.max_position_embeddings)
    is_complex = _COMPLEX_FUNCTION in _scope_of(module)
    rotary = PortableRotaryEmbedding(found, limit, is_complex=is_complex)
    rotary.config = config  # some models look into it
    return rotary


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
        ValueError: its function has other arguments, or rotates other pairs than those specified.
    """
    scope = _scope_of(module)
    for name in (*_FUNCTIONS, _COMPLEX_FUNCTION):
        stock = scope.get(name)
        if stock is None or hasattr(stock, "stock"):
            continue
        owner = type(module).__name__
        if name == _COMPLEX_FUNCTION:
            scope[name] = _with_complex_rotations(stock, _heads_dim_of(owner, stock))
        else:
            scope[name] = _with_rotations(stock, _style_of(owner, stock))


def _scope_of(module: nn.Module) -> dict[str, Any]:
    """Return the names of the file that has the code of a module."""
    return inspect.unwrap(type(module).forward).__globals__


@dataclass(frozen=True)
class _Style:
    """Which pairs a function rotates.

    Attributes:
        is_interleaved: (2j, 2j + 1), not (j, h + j).
        is_parted: the first numbers of all pairs come first in the result, whatever they were.
    """

    is_interleaved: bool
    is_parted: bool

    def apply(self, rotation: Rotation, x: torch.Tensor, heads_dim: int) -> torch.Tensor:
        """Return `x` rotated (`Rotation.of`)."""
        rotated = rotation.of(x, heads_dim, is_interleaved=self.is_interleaved)
        if not self.is_parted:
            return rotated
        return torch.cat((rotated[..., ::2], rotated[..., 1::2]), dim=-1)


_STYLES = (_Style(False, False), _Style(True, False), _Style(True, True))


def _with_rotations(stock: Callable[..., Any], style: _Style) -> Callable[..., Any]:
    @functools.wraps(stock)
    def apply(q: Any, k: Any, cos: Any, sin: Any, *others: Any, **named: Any) -> Any:
        if isinstance(cos, Rotation):
            heads_dim = named.get("unsqueeze_dim", others[-1] if others else 1)
            return style.apply(cos, q, heads_dim), style.apply(cos, k, heads_dim)
        return stock(q, k, cos, sin, *others, **named)

    apply.stock = stock  # type: ignore[attr-defined]
    return apply


def _style_of(name: str, stock: Callable[..., Any]) -> _Style:
    found = tuple(inspect.signature(stock).parameters)
    if found[:4] != _ARGUMENTS or not {*found[4:]} <= {"position_ids", "unsqueeze_dim"}:
        known = ", ".join((*_ARGUMENTS, "unsqueeze_dim"))
        raise refusal(name, f"its {stock.__name__} has other arguments than {known}")
    size, tokens = 16, 3
    table = rotary_table(rotary_frequencies(size), tokens)
    x = sample_rows(2 * tokens * size // 4, torch.float32).view(1, 2, tokens, size)
    rotation = Rotation(torch.arange(tokens), table)
    for cos, sin in _forms(table):
        try:
            expected, _ = stock(x, x, cos, sin)
        except RuntimeError:  # it takes them in another form
            continue
        for style in _STYLES:
            if difference(expected, style.apply(rotation, x, 1)) < 1e-5:
                return style
    raise refusal(name, "its rotary embedding rotates other pairs than (j, h + j) or (2j, 2j + 1)")


def _forms(table: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Yield cosines and sines in the forms in which models have them: each number twice, the halves
    or the neighbours being the same, and each once.
    """
    halves = [half[None] for half in table.chunk(2, dim=-1)]
    yield tuple(half.repeat(1, 1, 2) for half in halves)
    yield tuple(half.repeat_interleave(2, dim=-1) for half in halves)
    yield tuple(halves)


def _with_complex_rotations(stock: Callable[..., Any], heads_dim: int) -> Callable[..., Any]:
    @functools.wraps(stock)
    def apply(xq: Any, xk: Any, freqs_cis: Any) -> Any:
        if isinstance(freqs_cis, Rotation):
            return tuple(freqs_cis.of(x, heads_dim, is_interleaved=True) for x in (xq, xk))
        return stock(xq, xk, freqs_cis)

    apply.stock = stock  # type: ignore[attr-defined]
    return apply


def _heads_dim_of(name: str, stock: Callable[..., Any]) -> int:
    """Return where a function expects heads, 1 or 2."""
    if tuple(inspect.signature(stock).parameters) != _COMPLEX_ARGUMENTS:
        known = ", ".join(_COMPLEX_ARGUMENTS)
        raise refusal(name, f"its {stock.__name__} has other arguments than {known}")
    size, tokens = 16, 3
    table = rotary_table(rotary_frequencies(size), tokens)
    turns = torch.complex(*table.chunk(2, dim=-1))[None]
    x = sample_rows(2 * tokens * size // 4, torch.float32).view(1, 2, tokens, size)
    rotation = Rotation(torch.arange(tokens), table)
    for heads_dim in (1, 2):
        rows = x if heads_dim == 1 else x.transpose(1, 2).contiguous()
        try:
            expected, _ = stock(rows, rows, turns)
        except RuntimeError:  # it expects heads elsewhere
            continue
        if difference(expected, rotation.of(rows, heads_dim, is_interleaved=True)) < 1e-5:
            return heads_dim
    raise refusal(name, "its rotary embedding rotates other pairs than (2j, 2j + 1)")
