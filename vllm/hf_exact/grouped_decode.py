"""The next tokens of many requests at once, where that is proven to leave every bit as it is.

Between its matrix products a decoder treats rows alone, so several requests' tokens can share one
call of the model if the products (`single_row_products`) and attention keep to each request's own
shapes.
Attention does, by calling Transformers' own function for each request with its keys and values.
Whether the whole gives the bits of one request after the other is tried when the engine starts, on
the loaded weights; if it does not, requests are computed alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import DynamicCache, PreTrainedModel
from transformers.activations import ACT2CLS
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.pytorch_utils import Conv1D

from vllm.fork_ops import has_paged_sdpa
from vllm.hf_exact.alone import sliding_windows
from vllm.hf_exact.kv_pages import LayerPages
from vllm.hf_exact.row_linear import Group, RowLinear
from vllm.hf_numerics.paged_attention import attend_in_pages
from vllm.hf_numerics.single_row_experts import PLAIN_MIXTURES, RowExperts
from vllm.hf_numerics.single_row_products import RowPlan

_ACTIVATIONS = {one[0] if isinstance(one, tuple) else one for one in ACT2CLS.values()}
_ROPES = {"default", "linear", "llama3", "yarn"}  # others look at how long a sequence is


class PagesAreReadError(AttributeError):
    """A model computes with what is cached before it attends to it."""


@dataclass
class GroupPages:
    """Keys and values of several requests, which stay where they are until they are needed.

    Attributes:
        pages: of the layer.
        blocks: int32 [num_requests, max_blocks].
        starts: int64 [num_requests], the first token of each that is attended to.
        stops: int64 [num_requests], the token after the last one.
    """

    pages: LayerPages
    blocks: torch.Tensor
    starts: torch.Tensor
    stops: torch.Tensor

    def __getattr__(self, name: str) -> Any:
        """Refuse what only tensors have.

        Raises:
            PagesAreReadError: always.
        """
        raise PagesAreReadError(f"keys and values of a group are no tensor, with {name!r}")

    def read(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the keys and values of one request (`LayerPages.read`)."""
        key, value = self.pages.read(self.blocks[i], int(self.starts[i]), int(self.stops[i]))
        return key.contiguous(), value.contiguous()


class GroupCache(DynamicCache):
    """HF's cache as a model's layers call it, for one new token of several requests.

    Args:
        layers: the pages of each layer.
        windows: the sliding window of each layer, None without.
        blocks: int [num_requests, max_blocks].
        positions: of the new tokens.
    """

    def __init__(
        self,
        layers: Sequence[LayerPages],
        windows: Sequence[int | None],
        blocks: torch.Tensor,
        positions: Sequence[int],
    ) -> None:
        super().__init__()
        self._pages, self._windows = layers, windows
        self._blocks, self._positions = blocks, positions
        self._places = torch.tensor(positions, device=blocks.device)
        self._starts = {
            window: torch.clamp_min(self._places + 1 - (window or self._places.max() + 1), 0)
            for window in set(windows)
        }

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *_: Any,
        **__: Any,
    ) -> tuple[Any, Any]:
        """Store [num_requests, num_heads, 1, head_size]; return where all are, twice."""
        pages = self._pages[layer_idx]
        pages.write_each(self._blocks, self._places, key_states[:, :, 0], value_states[:, :, 0])
        starts = self._starts[self._windows[layer_idx]]
        found = GroupPages(pages, self._blocks, starts, self._places + 1)
        return found, found

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the length of the longest sequence; masks and positions do not follow from it."""
        return max(self._positions)

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """As ``DynamicCache.get_mask_sizes``, for masks that are not made."""
        return max(self._positions) + query_length, 0


def can_group(model: PreTrainedModel) -> bool:
    """Whether a model's attention can be called for each request alone."""
    config = model.config.get_text_config(decoder=True)
    ropes = getattr(config, "rope_parameters", None) or {}
    kinds = {
        one.get("rope_type", "default")
        for one in ([ropes] if "rope_type" in ropes else ropes.values())
        if isinstance(one, dict)
    }
    return (
        bool(getattr(model, "_supports_attention_backend", False))
        and getattr(model, "hf_quantizer", None) is None
        and model.config._attn_implementation in _GROUPED
        and kinds <= _ROPES
    )


class GroupedDecode:
    """Computes one token of each of several requests.

    Args:
        model: for which `can_group` holds.
        layers: the pages of each layer.
    """

    def __init__(self, model: PreTrainedModel, layers: Sequence[LayerPages]) -> None:
        self._model = model
        self._layers = layers
        self._windows = sliding_windows(model, len(layers))
        self._stock = model.config._attn_implementation
        found = (getattr(module, "config", None) for module in model.modules())
        self._configs = {id(one): one for one in found if one is not None}.values()
        self._group = Group()
        self.stand_in()

    def stand_in(self) -> None:
        """Stand in for the layers that do not treat rows alone; again, for those that are new."""
        for module in self._model.modules():
            if _is_plain_mixture(module):
                self._stand_in_for_mixture(module)
            elif "forward" in vars(module):
                continue
            elif type(module) in (nn.Linear, Conv1D):
                plan = RowPlan.of_weight(module.weight, module.bias is not None, type(module))
                vars(module)["forward"] = RowLinear(module, plan, self._group)
            elif (
                isinstance(module, nn.Linear)
                or hasattr(module, "experts")
                or type(module) in _ACTIVATIONS
            ):
                vars(module)["forward"] = _row_by_row(module.forward, self._group)

    def _stand_in_for_mixture(self, mixture: Any) -> None:
        if "forward" not in vars(mixture.gate):
            vars(mixture.gate)["forward"] = _row_by_row(mixture.gate.forward, self._group)
            vars(mixture.experts)["forward"] = _rows_together(mixture.experts, self._group)

    def __call__(
        self, token_ids: torch.Tensor, blocks: torch.Tensor, positions: Sequence[int]
    ) -> torch.Tensor:
        """Return the next logits of each request, [num_requests, vocab_size].

        Args:
            token_ids: int64 [num_requests], the newest tokens.
            blocks: int [num_requests, max_blocks].
            positions: theirs.

        Raises:
            PagesAreReadError: the model's requests cannot be computed together.
        """
        cache = GroupCache(self._layers, self._windows, blocks, positions)
        places = torch.tensor(positions, device=token_ids.device)[:, None]
        with self._row_by_row():
            output = self._model(
                input_ids=token_ids[:, None],
                position_ids=places,
                past_key_values=cache,
                use_cache=True,
                return_dict=True,
            )
        return output.logits[:, -1]

    @contextmanager
    def _row_by_row(self) -> Iterator[None]:
        """Let the model's layers treat each request alone while they compute a group."""
        self._group.is_active = True
        for config in self._configs:
            config._attn_implementation_internal = _GROUPED[self._stock]
        try:
            yield
        finally:
            self._group.is_active = False
            for config in self._configs:
                config._attn_implementation_internal = self._stock


def _row_by_row(forward: Callable[..., Any], group: Group) -> Callable[..., Any]:
    """Return `forward`, called for each request of a group alone.

    Experts multiply the rows that are sent to them. Activations round differently where PyTorch's
    loop over a tensor ends, or is split between threads, and no whole vector is left.
    """

    def each(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if not group.is_active:
            return forward(x, *args, **kwargs)
        answers = [forward(row, *args, **kwargs) for row in x.split(1)]
        if isinstance(answers[0], tuple):
            return tuple(torch.cat(parts) for parts in zip(*answers, strict=True))
        return torch.cat(answers)

    return each


def _is_plain_mixture(module: nn.Module) -> bool:
    config = getattr(getattr(module, "experts", None), "config", None)
    return getattr(config, "model_type", None) in PLAIN_MIXTURES


def _rows_together(experts: nn.Module, group: Group) -> Callable[..., Any]:
    """Return the forward of experts, in which tokens of a group share products."""
    forward, together = experts.forward, RowExperts(experts)

    def compute(*rows: torch.Tensor) -> torch.Tensor:
        if not group.is_active:
            return forward(*rows)
        group.is_active = False  # the activation takes a token's experts together
        try:
            return together(*rows)
        finally:
            group.is_active = True

    return compute


def _attend_as(stock: str) -> Callable[..., Any]:
    """Return an attention function of Transformers for the `GroupPages` of a group."""

    def attend(
        module: nn.Module,
        query: torch.Tensor,
        found: GroupPages,
        _: GroupPages,
        mask: object,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, None]:
        function = (
            sys.modules[type(module).__module__].eager_attention_forward
            if stock == "eager"
            else ALL_ATTENTION_FUNCTIONS[stock]
        )
        is_gqa = getattr(module, "num_key_value_groups", 1) > 1
        if function is sdpa_attention_forward and _has_operator(found.pages, is_gqa, **kwargs):
            return _attend_in_pages(query, found, is_gqa, **kwargs), None
        one = [
            function(module, query[i : i + 1], *found.read(i), None, **kwargs)[0]
            for i in range(len(query))
        ]
        return torch.cat(one), None

    return attend


def _has_operator(
    pages: LayerPages, is_gqa: bool, position_bias: object = None, **_: object
) -> bool:
    """Whether all that ``sdpa_attention_forward`` would do is call PyTorch's function."""
    repeats_heads = is_gqa and not pages.key_size == pages.value_size <= 256
    return has_paged_sdpa(pages.kv_cache.device) and position_bias is None and not repeats_heads


def _attend_in_pages(
    query: torch.Tensor,
    found: GroupPages,
    is_gqa: bool,
    scaling: float | None = None,
    **_: object,
) -> torch.Tensor:
    """As ``sdpa_attention_forward`` of each request: one token needs no mask and no dropout."""
    pages = found.pages
    return attend_in_pages(
        query,
        pages.kv_cache,
        found.blocks,
        found.starts,
        found.stops,
        key_size=pages.key_size,
        scale=scaling,
        enable_gqa=is_gqa,
    )


def _no_mask(*_: object, **__: object) -> None:
    """Return no mask: a request's newest token sees all keys that it is given."""


_GROUPED = {stock: f"vllm_exact_{stock}" for stock in ("sdpa", "eager")}
for _stock, _grouped in _GROUPED.items():
    ALL_ATTENTION_FUNCTIONS.register(_grouped, _attend_as(_stock))
    ALL_MASK_ATTENTION_FUNCTIONS.register(_grouped, _no_mask)
