"""Several prompts in one call of the model, where that is proven to leave every bit as it is.

The prompts lie one behind the other, as if they were one text. What computes rows alone does not
see that; matrix products, activations, rotary embeddings and experts keep to the shapes that each
prompt has alone (`stand_ins`), and attention to its own tokens. That nothing else is in a model is
found out when the engine starts (`self_check`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import nn
from transformers import DynamicCache, PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from vllm.fork_kernels.torch_order.decoder_rows import Prompts, RowsInPages
from vllm.hf_layers.attention.paged_attention import Heads
from vllm.hf_layers.attention.prompt_attention import attend_to_prompts, spans_by_way
from vllm.hf_layers.products.prompts_together import LONGEST
from vllm.hf_layers.products.row_counts import MOST_AT_ONCE
from vllm.hf_model.attention_name import AttentionName
from vllm.hf_model.generate_call import keeps_last
from vllm.hf_model.group import Group
from vllm.hf_model.group_cache import NoTensor, PagesAreReadError
from vllm.hf_model.grouped_decode import calls_only_sdpa, why_no_group
from vllm.hf_model.kv_pages import LayerPages
from vllm.hf_model.model_cache import ModelCache
from vllm.hf_model.one_operator import OneOperator
from vllm.hf_model.own_code import own_code

_ATTENTION = "vllm_exact_prompts"


@dataclass
class PromptPages(NoTensor):
    """Keys and values of several prompts, which have been written to their pages.

    Attributes:
        pages: of the layer.
        blocks: int32 [num_prompts, max_blocks].
        spans: int64 [num_prompts, 4] (`vllm.fork_kernels.torch_order.prompt_sdpa`).
    """

    pages: LayerPages
    blocks: torch.Tensor
    spans: torch.Tensor


class PromptsCache(DynamicCache):
    """HF's cache as a model's layers call it, for several prompts.

    Args:
        layers: the pages of each layer.
        blocks: int32 [num_prompts, max_blocks].
        spans: int64 [num_prompts, 4] (`vllm.fork_kernels.torch_order.prompt_sdpa`).
        slots: int64 [num_tokens], the place of each token (`LayerPages.slots_of`).
    """

    def __init__(
        self,
        layers: Sequence[LayerPages],
        blocks: torch.Tensor,
        spans: torch.Tensor,
        slots: torch.Tensor,
    ) -> None:
        super().__init__()
        self._pages = layers
        self._blocks, self._spans, self._slots = blocks, spans, slots

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *_: Any,
        **__: Any,
    ) -> tuple[Any, Any]:
        """Store [1, num_heads, num_tokens, head_size]; return where all are, twice."""
        pages = self._pages[layer_idx]
        with own_code():
            pages.write(self._slots, key_states[0].transpose(0, 1), value_states[0].transpose(0, 1))
        found = PromptPages(pages, self._blocks, self._spans)
        return found, found

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return that nothing is cached before."""
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """As ``DynamicCache.get_mask_sizes``, for masks that are not made."""
        return query_length, 0


class GroupedPrompts:
    """Computes prompts of several requests, of which none has been computed.

    Args:
        model: for which `can_group_prompts` holds.
        cache: of the model.
        group: of the layers that stand in for the model's (`stand_in`).
        operator: of all layers, where there is one.

    Attributes:
        takes_one: whether a prompt by itself has its bits where `is_one_operator`.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        cache: ModelCache,
        group: Group,
        operator: OneOperator | None = None,
    ) -> None:
        self._model = model
        self._layers = cache.pages
        self._operator = operator
        self._attention = AttentionName(model, _ATTENTION)
        self._group = group
        self.takes_one = False
        # What does not outgrow a window needs no mask.
        windows = [one for one in cache.windows if one is not None]
        self._longest = min([LONGEST, *(window - 1 for window in windows)])

    @property
    def is_one_operator(self) -> bool:
        """Whether the layers are computed as one operator now, which saves time for one, too."""
        return self._operator is not None and self._operator.takes_prompts

    def split(self, lengths: dict[int, int]) -> list[list[int]]:
        """Return which prompts are computed together; others are in none of these.

        Args:
            lengths: of each prompt.
        """
        groups: list[list[int]] = []
        num_tokens = MOST_AT_ONCE
        for i, length in lengths.items():
            if not 1 < length <= self._longest:
                continue
            if num_tokens + length > MOST_AT_ONCE:
                groups.append([])
                num_tokens = 0
            groups[-1].append(i)
            num_tokens += length
        takes_one = bool(groups) and self.takes_one and self.is_one_operator
        return [group for group in groups if len(group) > 1 or takes_one]

    def __call__(
        self, prompts: Sequence[torch.Tensor], blocks: torch.Tensor, slots: torch.Tensor
    ) -> torch.Tensor:
        """Return the last logits of each prompt, [num_prompts, vocab_size].

        Args:
            prompts: int64 [num_tokens] each.
            blocks: int32 [num_prompts, max_blocks].
            slots: int64, the places of their tokens, one prompt behind the other
                (`LayerPages.slots_of`).

        Raises:
            PagesAreReadError: the model's prompts cannot be computed together.
        """
        lengths = [len(prompt) for prompt in prompts]
        ends = list(accumulate(lengths))
        runs = tuple((False, begin, end) for begin, end in pairwise([0, *ends]))
        spans = torch.tensor(
            [(begin, end, i, end - begin) for i, (_, begin, end) in enumerate(runs)]
        )
        token_ids, last = torch.cat(list(prompts)), torch.tensor(ends) - 1
        if self._operator is not None and self._operator.takes_prompts:
            place = _place_of(blocks, spans, slots, self._operator.heads)
            places = [place] * len(self._layers)
            return self._operator.prompts(token_ids, places, runs, last)
        positions = torch.cat([torch.arange(length) for length in lengths])
        with self._group.of_prompts(runs), self._attention.is_used():
            output = self._model(
                input_ids=token_ids[None],
                position_ids=positions[None],
                past_key_values=PromptsCache(self._layers, blocks, spans, slots),
                use_cache=True,
                logits_to_keep=last,
                return_dict=True,
            )
        return output.logits[0]


def _place_of(
    blocks: torch.Tensor, spans: torch.Tensor, slots: torch.Tensor, heads: Heads
) -> RowsInPages:
    """Return where prompts are, in each layer: no window is shorter than one."""
    none = slots[:0]
    prompts = Prompts(blocks, *spans_by_way(heads, spans))
    return RowsInPages(slots, blocks[:0], none, none, prompts=prompts)


def can_group_prompts(model: PreTrainedModel, cache: ModelCache) -> bool:
    """Whether all that is known of a model before it has run lets prompts be computed together."""
    return (
        why_no_group(model, cache) is None
        and not cache.states  # which would go on from one prompt to the next
        and model.device.type == "cpu"
        and model.config._attn_implementation == "sdpa"
        and keeps_last(model)
    )


def _attend(
    module: nn.Module,
    query: torch.Tensor,
    found: PromptPages,
    _: PromptPages,
    attention_mask: object = None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """As ``sdpa_attention_forward`` of each prompt alone: a causal mask is left to PyTorch.

    Args:
        module: of the model.
        query: [1, num_heads, num_tokens, head_size].
        found: keys and values.
        mask: None.
        scaling: factor of the scores.
        kwargs: others that the function takes.

    Raises:
        PagesAreReadError: the function would do more.
    """
    is_gqa = getattr(module, "num_key_value_groups", 1) > 1
    is_causal = kwargs.get("is_causal")
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    if not is_causal or not calls_only_sdpa(found.pages, is_gqa, **kwargs):
        raise PagesAreReadError("attention of prompts is more than PyTorch's causal function")
    num_heads, num_tokens = query.shape[1:3]
    result = query.new_empty(num_tokens, num_heads, found.pages.value_size)
    with own_code():
        attend_to_prompts(
            query[0].transpose(0, 1),
            found.pages.kv_cache,
            found.blocks,
            found.spans,
            result,
            key_size=found.pages.key_size,
            scale=scaling,
            enable_gqa=is_gqa,
        )
    return result[None], None


def _no_mask(*_: object, **__: object) -> None:
    """Return no mask."""


ALL_ATTENTION_FUNCTIONS.register(_ATTENTION, _attend)
ALL_MASK_ATTENTION_FUNCTIONS.register(_ATTENTION, _no_mask)
