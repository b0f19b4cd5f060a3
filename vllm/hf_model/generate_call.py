"""The call of a Transformers model that `generate()` makes for one sequence."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from transformers import DynamicCache, PreTrainedModel

from vllm.hf_layers.engine.exact_models import cache_name


class GenerateCall:
    """Calls a model as ``GenerationMixin._sample`` does.

    Args:
        model: of Transformers.

    Attributes:
        takes_positions: whether it is given the positions of tokens.
        cache_name: of the argument that is the cache.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        parameters = inspect.signature(model.forward).parameters
        self.takes_positions = "position_ids" in parameters
        self._keeps_last = keeps_last(model)
        self.cache_name = cache_name(model)

    def __call__(
        self, input_ids: torch.Tensor, known: int, cache: DynamicCache
    ) -> tuple[torch.Tensor, Any]:
        """Run the model.

        Args:
            input_ids: int64 [1, num_tokens], the whole sequence.
            known: how many of them the model has seen.
            cache: as it was left then.

        Returns:
            The last logits, [1, vocab_size], in the model's dtype, and the cache that the model
            answers with; None if it answers with none.
        """
        seq_len = input_ids.shape[1]
        arguments: dict[str, Any] = {"attention_mask": torch.ones_like(input_ids)}
        if self.takes_positions:
            arguments["position_ids"] = torch.arange(seq_len, device=input_ids.device)[None]
        if self._keeps_last:
            arguments["logits_to_keep"] = 1
        inputs = self.model.prepare_inputs_for_generation(
            input_ids,
            next_sequence_length=seq_len - known,
            is_first_iteration=not known,
            use_cache=True,
            **{self.cache_name: cache},
            **arguments,
        )
        output = self.model(**inputs, return_dict=True)
        return output.logits[:, -1], getattr(output, self.cache_name, None)

    def empty_cache(self) -> DynamicCache:
        """Return the cache that ``GenerationMixin._prepare_cache_for_generation`` makes."""
        return DynamicCache(config=self.model.config.get_text_config(decoder=True))


def keeps_last(model: PreTrainedModel) -> bool:
    """Whether a model can be asked for the logits of some tokens alone."""
    return "logits_to_keep" in inspect.signature(model.forward).parameters
