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
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from vllm.fork_kernels import has_paged_sdpa
from vllm.hf_layers.attention.paged_attention import attend_in_pages
from vllm.hf_model.attention_name import AttentionName
from vllm.hf_model.generate_call import GenerateCall
from vllm.hf_model.group import Group
from vllm.hf_model.group_cache import GroupCache, GroupPages, places_of
from vllm.hf_model.kv_pages import LayerPages
from vllm.hf_model.model_cache import ModelCache
from vllm.hf_model.one_operator import OneOperator

_ROPES = {"default", "linear", "llama3", "yarn"}  # others look at how long a sequence is


def why_no_group(model: PreTrainedModel, cache: ModelCache) -> str | None:
    """Return why a model's requests are computed alone, as far as that is known before a trial;
    None where a trial is to tell.
    """
    if any(pages.index_size for pages in cache.pages):
        return "an index selects the keys that it attends to"
    if getattr(model, "hf_quantizer", None) is not None:
        return "its weights are quantised"
    if not cache.pages:  # nothing attends
        return None
    if (name := model.config._attn_implementation) not in _GROUPED:
        return f"its attention is {name}"
    config = model.config.get_text_config(decoder=True)
    ropes = getattr(config, "rope_parameters", None) or {}
    kinds = {
        one.get("rope_type", "default")
        for one in ([ropes] if "rope_type" in ropes else ropes.values())
        if isinstance(one, dict)
    }
    if others := kinds - _ROPES:
        return f"its {others.pop()} rope looks at how long a text is"
    return None


class GroupedDecode:
    """Computes one token of each of several requests.

    Args:
        call: of a model for which `why_no_group` is None.
        cache: of the model.
        group: of the layers that stand in for the model's (`stand_in`).
        operator: of all layers, where there is one.
    """

    def __init__(
        self,
        call: GenerateCall,
        cache: ModelCache,
        group: Group,
        operator: OneOperator | None = None,
    ) -> None:
        model = call.model
        self._call = call
        self._layers = cache.layers
        self._operator = operator
        self._windows = cache.windows
        name = model.config._attn_implementation
        self._attention = AttentionName(model, _GROUPED.get(name, name))
        self._group = group

    def __call__(
        self,
        token_ids: torch.Tensor,
        blocks: torch.Tensor,
        positions: Sequence[int],
        slots: torch.Tensor,
        states: Sequence[Sequence[int]] = (),
    ) -> torch.Tensor:
        """Return the next logits of each request, [num_requests, vocab_size].

        Args:
            token_ids: int64 [num_requests], the newest tokens.
            blocks: int [num_requests, max_blocks].
            positions: theirs.
            slots: int64 [num_requests], their places (`LayerPages.slots_of`).
            states: the blocks of each request's states, if the model has states.

        Raises:
            PagesAreReadError: the model's requests cannot be computed together.
        """
        position_ids = torch.tensor(positions, device=token_ids.device)
        places = places_of(self._windows, blocks, position_ids, slots)
        if self._operator is not None and self._operator.takes_tokens:
            of_layers = [places[window] for window in self._windows]
            return self._operator.tokens(token_ids, positions, position_ids, of_layers)
        cache = GroupCache(self._layers, places, positions, states)
        arguments: dict[str, Any] = {self._call.cache_name: cache}
        if self._call.takes_positions:
            arguments["position_ids"] = position_ids[:, None]
        with self._group.of_rows(), self._attention.is_used():
            output = self._call.model(
                input_ids=token_ids[:, None], use_cache=True, return_dict=True, **arguments
            )
        cache.store_states()
        return output.logits[:, -1]


def _attend_as(stock: str) -> Callable[..., Any]:
    """Return an attention function of Transformers for the `GroupPages` of a group."""

    def attend(
        module: nn.Module,
        query: torch.Tensor,
        found: GroupPages,
        _: GroupPages,
        attention_mask: object = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, None]:
        function = (
            sys.modules[type(module).__module__].eager_attention_forward
            if stock == "eager"
            else ALL_ATTENTION_FUNCTIONS[stock]
        )
        is_gqa = getattr(module, "num_key_value_groups", 1) > 1
        if function is sdpa_attention_forward and calls_only_sdpa(found.pages, is_gqa, **kwargs):
            return _attend_in_pages(query, found, is_gqa, **kwargs), None
        one = [
            function(module, query[i : i + 1], *found.read(i), None, **kwargs)[0]
            for i in range(len(query))
        ]
        return torch.cat(one), None

    return attend


def calls_only_sdpa(
    pages: LayerPages, is_gqa: bool, position_bias: object = None, **_: object
) -> bool:
    """Whether all that ``sdpa_attention_forward`` would do is call PyTorch's function, for which
    there is an operator.
    """
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
