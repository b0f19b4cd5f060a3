"""LoRA adapters that PEFT puts on an attached model; see ``docs/numerics/products.md``, "Adapters".

PEFT wraps layers of a model. The wrappers are found before the next forward, and get the portable
forward of the engine, which keeps an adapter in the model's dtype: parameters of another one, as
PEFT makes them, are rounded to it in each forward.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from vllm.fork_kernels.portable.product import PackedWeight

from ..refusal import attach_refusal as refusal
from .following import Following
from .form import Form, become
from .gradients.product import product, sum_with_share
from .linear import HeadForm, LinearForm
from .weights import pack_matrices

__all__ = ["LoraForm", "adopt_adapters"]


class AdapterWeights(Following[tuple[list[PackedWeight], list[PackedWeight]]]):
    """The packed A and B of an adapter, of layers that share their input.

    Args:
        name: of the adapter.
        wrappers: of these layers.
    """

    def __init__(self, name: str, wrappers: list[LoraForm]) -> None:
        reductions = [(wrapper.lora_A[name], "weight") for wrapper in wrappers]
        expansions = [(wrapper.lora_B[name], "weight") for wrapper in wrappers]
        super().__init__(_pack, reductions + expansions)
        self._name = name
        self._wrappers = wrappers

    def of_wrapper(
        self, wrapper: LoraForm, dtype: torch.dtype
    ) -> tuple[PackedWeight, PackedWeight]:
        """Return A and B of one of the layers, in a dtype."""
        scales = tuple(float(one.scaling[self._name]) for one in self._wrappers)
        reductions, expansions = self.of(dtype, scales)
        index = [one is wrapper for one in self._wrappers].index(True)
        return reductions[index], expansions[index]

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_name": self._name, "_wrappers": self._wrappers}


class LoraForm(Form):
    """PEFT's LoRA layer.

    Attributes:
        portable_adapters: the packed adapters by their names.
    """

    portable_adapters: dict[str, AdapterWeights]
    base_layer: Any
    lora_A: Any
    lora_B: Any
    lora_bias: dict[str, bool]
    lora_variant: dict[str, Any]
    scaling: dict[str, float]
    active_adapters: list[str]
    disable_adapters: bool
    merged: bool

    def own_followings(self) -> list[Following[Any]]:
        """Return the packed adapters."""
        return list(self.portable_adapters.values())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [..., out_features] of x [..., in_features] with the active adapter, in its dtype.

        Raises:
            ValueError: two adapters are active.
        """
        names = [name for name in self.active_adapters if name in self.portable_adapters]
        if self.disable_adapters or self.merged or not names:
            return self.base_layer(x)
        if len(names) > 1:
            raise refusal(f"adapters {' and '.join(names)} at once", "an engine adds one")
        (name,) = names
        packed = self.portable_adapters[name].of_wrapper(self, x.dtype)
        reduction = self.lora_A[name].weight.to(x.dtype)
        expansion = self.lora_B[name].weight.to(x.dtype) * self.scaling[name]
        rows, base = x.flatten(0, -2), self.base_layer
        reduced = product(rows, reduction, None, packed[0], torch.float32)
        share = product(reduced, expansion, None, packed[1], torch.float32)
        sums = product(rows, base.matrix, None, base.packed, torch.float32)
        return sum_with_share(sums, share, base.bias, x.dtype).view(*x.shape[:-1], -1)


def _pack(*arguments: Any) -> tuple[list[PackedWeight], list[PackedWeight]]:
    """Pack A and B of layers, with B times its scale, as an engine does that loads an adapter."""
    *weights, dtype, scales = arguments
    weights = [weight.to(dtype) for weight in weights]
    reductions, expansions = weights[: len(scales)], weights[len(scales) :]
    scaled = [weight * scale for weight, scale in zip(expansions, scales, strict=True)]
    return pack_matrices(reductions), [pack_matrices([one])[0] for one in scaled]


def adopt_adapters(model: nn.Module) -> None:
    """Give the LoRA layers of a model their portable forward.

    Raises:
        ValueError: a layer of PEFT has none; the sentence names it.
    """
    wrappers = []
    for name, module in model.named_modules():
        if _is_tuner(module):
            _adopt(name, module)
            wrappers.append(module)
    groups: dict[int, list[Any]] = {}
    for wrapper in wrappers:
        groups.setdefault(id(wrapper.base_layer.portable_weights), []).append(wrapper)
    for group in groups.values():
        for name in {name for wrapper in group for name in wrapper.lora_A}:
            _follow(name, [wrapper for wrapper in group if name in wrapper.lora_A])


def _is_tuner(module: nn.Module) -> bool:
    if not hasattr(module, "base_layer"):
        return False
    from peft.tuners.tuners_utils import BaseTunerLayer

    return isinstance(module, BaseTunerLayer)


def _adopt(name: str, module: Any) -> None:
    if not isinstance(module, LoraForm):
        from peft.tuners.lora.layer import Linear

        if type(module) is not Linear:
            raise refusal(
                f"{name} ({type(module).__name__})", "of PEFT only LoRA of linear layers is known"
            )
        become(module, LoraForm, portable_adapters={})
    base = module.base_layer
    if not isinstance(base, LinearForm) or isinstance(base, HeadForm):
        raise refusal(name, "an adapter of an embedding, the head, or another adapter is unknown")
    for adapter in module.lora_A:
        if adapter in module.lora_variant or module.lora_bias[adapter]:
            raise refusal(f"{name} with the adapter {adapter}", "only plain LoRA is known, no DoRA")
    if module.disable_adapters and module.merged:
        module.unmerge()  # as PEFT would while it computes, when weights were checked already


def _follow(name: str, wrappers: list[Any]) -> None:
    following = AdapterWeights(name, wrappers)
    known = wrappers[0].portable_adapters.get(name)
    if known is not None and known.sources == following.sources:
        return
    for wrapper in wrappers:
        wrapper.portable_adapters[name] = following
