"""Linear layers as portable products; see ``docs/numerics/products.md``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from vllm.fork_kernels.portable.functions import Function
from vllm.fork_kernels.portable.product import PackedWeight

from .form import Form, become
from .gradients.functions import elementwise
from .gradients.product import product
from .gradients.refused import without_gradient
from .weights import LayerWeights

__all__ = [
    "HeadForm",
    "LinearForm",
    "adopt_head",
    "adopt_linear_layers",
    "adopt_together",
    "take_fields",
]

_OF_LOGITS = {"final_logit_softcapping": None, "logits_scaling": 1.0}
"""Fields of configurations, and their values where nothing is computed."""

_TOGETHER = ("q_proj", "k_proj", "v_proj")
"""Layers of one input, which vLLM has as one matrix; gates are those of `mlp`."""


class LinearForm(Form):
    """``nn.Linear`` or ``Conv1D``.

    Attributes:
        portable_weights: of the layers that share its input.
        portable_index: which of these it is.
        weight: the parameter; if the model is sealed None, or empty where its dtype is asked for.
    """

    portable_weights: LayerWeights
    portable_index: int
    weight: nn.Parameter | None
    bias: nn.Parameter | None

    @property
    def matrix(self) -> torch.Tensor | None:
        """The weight, [out_features, in_features], None if the model is sealed; ``Conv1D`` keeps it
        transposed.
        """
        weight = self.weight
        if weight is None or weight.numel() == 0:
            return None
        return weight.t() if isinstance(self, Conv1D) else weight

    @property
    def packed(self) -> PackedWeight:
        """The weight as it is now, packed."""
        return self.portable_weights.of()[self.portable_index]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [..., out_features] of x [..., in_features], in its dtype."""
        return product(x, self.matrix, self.bias, self.packed)


class HeadForm(LinearForm):
    """The output embedding: float32 logits.

    Attributes:
        portable_cap: logits become cap * tanh(logits / cap), as in Gemma 2; None leaves them.
        portable_scale: a factor of them after that.
    """

    portable_cap: float | None
    portable_scale: float

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits, float32 [..., vocab_size], of x [..., hidden_size]."""
        logits = product(x, self.matrix, self.bias, self.packed, torch.float32)
        if self.portable_cap is not None:
            # A tensor: PyTorch divides by a number on CPU, and on CUDA multiplies with what is
            # nearly its reciprocal.
            caps = logits.new_full((1,), self.portable_cap)
            logits = elementwise(logits / caps, Function.TANH) * caps
        logits = logits if self.portable_scale == 1.0 else logits * self.portable_scale
        return without_gradient(logits) if self.matrix is None else logits


def adopt_head(model: Any) -> dict[str, Any]:
    """Give the output embedding of a model its form; return what it takes from the configuration,
    as of `take_fields`.
    """
    head = model.get_output_embeddings()
    if type(head) is not nn.Linear:
        return {}
    taken = take_fields(model.config)
    cap, divisor = taken.get("final_logit_softcapping"), taken.get("logits_scaling", 1.0)
    _become(HeadForm, [head], portable_cap=cap, portable_scale=1.0 / divisor)
    return taken


def take_fields(config: Any) -> dict[str, Any]:
    """Return what a configuration says of logits, and that it does no more: the head computes it
    from now on, and not the model's code.
    """
    taken = {}
    for name, nothing in _OF_LOGITS.items():
        if getattr(config, name, nothing) != nothing and name in vars(config):
            taken[name] = getattr(config, name)
            setattr(config, name, nothing)
    return taken


def adopt_linear_layers(parent: nn.Module) -> None:
    """Give the linear layers of a module their form; those with one input have weights as one."""
    together = [getattr(parent, name, None) for name in _TOGETHER]
    if all(type(layer) is nn.Linear for layer in together):
        adopt_together(together)
    for layer in parent.children():
        if type(layer) in (nn.Linear, Conv1D):
            adopt_together([layer])


def adopt_together(layers: Sequence[Any]) -> None:
    """Give linear layers that share their input their form."""
    _become(LinearForm, layers)


def _become(form: type[Form], layers: Sequence[Any], **attributes: Any) -> None:
    weights = LayerWeights(layers)
    for index, layer in enumerate(layers):
        become(layer, form, portable_weights=weights, portable_index=index, **attributes)
