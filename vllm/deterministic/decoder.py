"""All decoder layers of a model as one operator, on CPUs, with the same bits.

In a small model much of the time of a step goes into calling its layers' operators from Python. A
model whose layers are exactly what the operator computes takes it for decoding and for prompts.
Every other model goes its own way, and so does a step with hooks, with modules that were replaced,
with hidden states that others want, or without attention, as those are that try a model out.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from vllm.deterministic.attention import PortableMetadata
from vllm.deterministic.decoder_layers import DecoderLayers, computable_layers
from vllm.fork.models.llama_decoders import is_decoder
from vllm.fork_kernels.portable.decoder import DecoderWeights, Places, portable_decoder_layers
from vllm.forward_context import get_forward_context, is_forward_context_available
from vllm.platforms import current_platform


def use_portable_decoder(model: nn.Module) -> None:
    """Let the decoder layers of a model, which is not loaded yet, be computed at once on CPUs.

    Args:
        model: of vLLM, whose layers have portable bits; or one that holds such models.
    """
    if not current_platform.is_cpu():
        return
    for one in model.modules():
        if is_decoder(one) and "forward" not in vars(one):
            vars(one)["forward"] = PortableDecoder(one)


class PortableDecoder:
    """Stands in for the ``forward`` of a model without its head.

    Args:
        model: as ``LlamaModel``.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._forward = model.forward
        self._layers: DecoderLayers | None = None
        self._are_known = False

    def __call__(
        self,
        input_ids: torch.Tensor | None,
        positions: torch.Tensor,
        intermediate_tensors: Any = None,
        inputs_embeds: torch.Tensor | None = None,
        **others: Any,
    ) -> Any:
        """As ``LlamaModel.forward``."""
        model = self._model
        if intermediate_tensors is None and not others and not model.aux_hidden_state_layers:
            places = self._places(positions)
            weights = None if places is None else self._current_weights()
            if places is not None and weights is not None:
                given = model.embed_input_ids(input_ids) if inputs_embeds is None else inputs_embeds
                x = given.contiguous()
                added = self._compute(x, weights, positions, places)
                return model.norm(added, x)[0]
        return self._forward(input_ids, positions, intermediate_tensors, inputs_embeds, **others)

    def _places(self, positions: torch.Tensor) -> Places | None:
        """Return where the tokens of this step are; None unless all layers attend to the same."""
        if not is_forward_context_available() or positions.dim() != 1:
            return None
        context = get_forward_context()
        metadata, slots = context.attn_metadata, context.slot_mapping
        if not (isinstance(metadata, dict) and isinstance(slots, dict)):
            return None
        if (layers := self._known_layers()) is None:
            return None
        return _common_places(
            [metadata.get(name) for name in layers.names],
            [slots.get(name) for name in layers.names],
            len(positions),
        )

    def _known_layers(self) -> DecoderLayers | None:
        if not self._are_known:  # weights are loaded, and adapters are in their places
            self._layers, self._are_known = computable_layers(self._model), True
        return self._layers

    def _current_weights(self) -> DecoderWeights | None:
        """Return the weights; None if the layers are not, or not now, what is computed."""
        layers = self._known_layers()
        return None if layers is None or not layers.watched.are_unchanged else layers.weights

    def _compute(
        self, x: torch.Tensor, weights: DecoderWeights, positions: torch.Tensor, places: Places
    ) -> torch.Tensor:
        assert self._layers is not None
        shape = self._layers.shape
        # vLLM's parameters have Python called for each operator that they are given to.
        with torch._C.DisableTorchFunctionSubclass():
            return portable_decoder_layers(
                *(x, weights, shape.sizes, positions.contiguous(), shape.rotation.table, places),
                is_interleaved=shape.rotation.is_interleaved,
                scale=shape.scale,
                window=shape.window,
            )


def _common_places(metadata: list[Any], slots: list[Any], num_rows: int) -> Places | None:
    """Return where rows are, if they are all of a step, and the same for all layers.

    Args:
        metadata: of each layer's attention.
        slots: int64 [num_rows] of each layer, where keys and values are written.
        num_rows: of the layers' input.
    """
    first, own_slots = metadata[0], slots[0]
    if (
        type(first) is not PortableMetadata
        or own_slots is None
        or not first.num_tokens == len(own_slots) == num_rows > 0
        or any(one is not first for one in metadata)
        or any(one is not own_slots for one in slots)
    ):
        return None
    return Places(own_slots, first.block_table, first.query_start_loc, first.seq_lens)
