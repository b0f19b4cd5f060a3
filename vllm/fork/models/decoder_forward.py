"""Models of vLLM whose decoder layers compute a step as one operator, where a mode has one.

What layers call for a step are many small operators, and in a small model most of the time goes
into calling them. A step goes the model's own way if its layers are not exactly what the operator
computes: with adapters, with hooks, with modules that were replaced, with hidden states that others
want, or without attention, as the steps are that try a model out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import torch
from torch import nn

from vllm.fork.models.llama_decoders import is_decoder
from vllm.fork.models.watched_modules import WatchedModules
from vllm.forward_context import get_forward_context, is_forward_context_available
from vllm.platforms import current_platform

if TYPE_CHECKING:
    from vllm.config import VllmConfig

P = TypeVar("P")


class LayersAsOne(Protocol[P]):
    """The layers of a loaded decoder, which one operator computes.

    Attributes:
        watched: the modules that are not called.
        names: of the layers' attention.
    """

    watched: WatchedModules
    names: list[str]

    def places(self, metadata: list[Any], slots: list[Any], num_rows: int) -> P | None:
        """Return where the tokens of a step are; None if the operator does not compute such a step.

        Args:
            metadata: of each layer's attention, or None.
            slots: int64 [num_rows or more] of each layer, where keys and values are written.
            num_rows: of the layers' input.
        """

    def compute(
        self, x: torch.Tensor, positions: torch.Tensor, places: P
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what the last layer adds, and to what, [num_rows, hidden_size] both.

        Args:
            x: [num_rows, hidden_size]; may be written to.
            positions: int64 [num_rows].
            places: of the tokens.
        """


LayersOf = Callable[[Any], LayersAsOne[Any] | None]
"""Returns the layers of a loaded decoder; None if the operator does not compute them."""


def use_one_operator(model: nn.Module, vllm_config: VllmConfig, layers_of: LayersOf) -> None:
    """Let the decoders of a model, which is not loaded yet, compute steps as one operator on CPUs.

    Args:
        model: of vLLM, or one that holds such models.
        vllm_config: of the engine.
        layers_of: of the mode.
    """
    if (
        not current_platform.is_cpu()
        or vllm_config.kv_transfer_config is not None  # what is sent is sent by each layer
        or vllm_config.parallel_config.pipeline_parallel_size > 1
    ):
        return
    for one in model.modules():
        if is_decoder(one) and "forward" not in vars(one):
            vars(one)["forward"] = DecoderForward(one, layers_of)


class DecoderForward(Generic[P]):
    """Stands in for the ``forward`` of a model without its head.

    Args:
        decoder: as ``LlamaModel``.
        layers_of: of the mode.
    """

    def __init__(self, decoder: Any, layers_of: LayersOf) -> None:
        self._decoder = decoder
        self._forward = decoder.forward
        self._layers_of = layers_of
        self._layers: LayersAsOne[P] | None = None
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
        decoder = self._decoder
        if (
            positions.dim() == 1
            and intermediate_tensors is None
            and not others
            and not decoder.aux_hidden_state_layers
            and (layers := self.current_layers()) is not None
            and (places := _places_in_step(layers, len(positions))) is not None
        ):
            x = decoder.embed_input_ids(input_ids) if inputs_embeds is None else inputs_embeds
            # vLLM's parameters have Python called for each operator that they are given to.
            with torch._C.DisableTorchFunctionSubclass():
                added, total = layers.compute(x, positions, places)
            return decoder.norm(added, total)[0]
        return self._forward(input_ids, positions, intermediate_tensors, inputs_embeds, **others)

    def current_layers(self) -> LayersAsOne[P] | None:
        """Return the layers; None if one is not, or not now, what the operator computes."""
        if not self._are_known:  # weights are loaded, and adapters are in their places
            self._layers, self._are_known = self._layers_of(self._decoder), True
        return self._layers if self._layers and self._layers.watched.are_unchanged else None


def _places_in_step(layers: LayersAsOne[P], num_rows: int) -> P | None:
    """Return where the tokens of the step at hand are; None if there is none with attention."""
    if not is_forward_context_available():
        return None
    context = get_forward_context()
    metadata, slots = context.attn_metadata, context.slot_mapping
    if not (isinstance(metadata, dict) and isinstance(slots, dict)):
        return None
    names = layers.names
    return layers.places([*map(metadata.get, names)], [*map(slots.get, names)], num_rows)
