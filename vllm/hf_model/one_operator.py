"""Transformers' models whose layers are computed as one operator, with what is around them.

Their own ``forward`` goes through wrappers, a cache object and masks, which take longer than the
layers of a small model do. What is left of it here is the embedding, the rotations and the head.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from vllm.fork.models.llama_decoders import is_decoder
from vllm.fork.models.watched_modules import WatchedModules
from vllm.fork_kernels.torch_order.decoder_rows import RowsInPages
from vllm.hf_layers.attention.paged_attention import Heads
from vllm.hf_layers.step_rows import Run
from vllm.hf_model.decoder_rows import DecoderRows, can_compute, computes_as_its_class
from vllm.hf_model.group import Group
from vllm.hf_model.kv_pages import LayerPages
from vllm.hf_model.rotations import Rotations


class OneOperator:
    """Computes groups with a model.

    Args:
        model: for which `is_one_operator` holds.
        layers: the pages of each layer.
        group: of the layers that stand in for the model's (`stand_in`).
    """

    def __init__(self, model: PreTrainedModel, layers: Sequence[LayerPages], group: Group) -> None:
        self._decoder: Any = model.get_decoder()
        self._head: Any = model.get_output_embeddings()
        self._pages = layers
        self._group = group
        self._rows = DecoderRows(self._decoder)
        self._rotations = Rotations(self._decoder.rotary_emb)
        self._watched = WatchedModules.of_decoder(self._decoder, model)

    @property
    def heads(self) -> Heads:
        """Of the attention."""
        return self._rows.heads

    @property
    def takes_tokens(self) -> bool:
        """Whether it computes tokens now: unless modules were replaced or hooked."""
        return self._watched.are_unchanged

    @property
    def takes_prompts(self) -> bool:
        """Whether it computes prompts now: in 16 bits, and likewise."""
        return self._rows.takes_prompts and self._watched.are_unchanged

    def tokens(
        self,
        token_ids: torch.Tensor,
        positions: Sequence[int],
        rows: torch.Tensor,
        places: Sequence[RowsInPages],
    ) -> torch.Tensor:
        """Return the next logits of each of several requests, [num_requests, vocab_size].

        Args:
            token_ids: int64 [num_requests], the newest tokens.
            positions: theirs.
            rows: the same, int64 [num_requests].
            places: of the tokens in the pages of each layer.
        """
        x = self._decoder.embed_tokens(token_ids)
        rotation = self._rotations.of_tokens(x, positions, rows)
        with self._group.of_rows():
            return self._logits(self._rows(x, rotation, self._memory(), places)[:, None])[:, -1]

    def prompts(
        self,
        token_ids: torch.Tensor,
        places: Sequence[RowsInPages],
        prompts: tuple[Run, ...],
        last: torch.Tensor,
    ) -> torch.Tensor:
        """Return the last logits of each of several prompts, [num_prompts, vocab_size].

        Args:
            token_ids: int64 [num_tokens], one prompt behind the other.
            places: of the tokens in the pages of each layer.
            prompts: the rows of each.
            last: int64 [num_prompts], the last row of each.
        """
        x = self._decoder.embed_tokens(token_ids)
        rotation = self._rotations.of_prompts(x, [end - begin for _, begin, end in prompts])
        with self._group.of_prompts(prompts):
            rows = self._rows(x, rotation, self._memory(), places, prompts, last)
            return self._logits(rows[None])[0]

    def _memory(self) -> list[torch.Tensor]:
        return [pages.kv_cache for pages in self._pages]

    def _logits(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self._head(x)
        return logits


def is_one_operator(model: nn.Module, attention_name: str) -> bool:
    """Whether a model's layers can be one operator, and it does nothing else beside them.

    Args:
        model: of Transformers.
        attention_name: of its implementation.
    """
    decoder: Any = getattr(model, "model", None)
    return (
        is_decoder(decoder)
        and type(model).__module__ == type(decoder).__module__
        and type(model).__name__.endswith("ForCausalLM")
        and computes_as_its_class(model)
        and type(model.lm_head) is nn.Linear
        and can_compute(decoder, attention_name)
    )
