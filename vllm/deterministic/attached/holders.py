"""Refuses modules with parameters that have no portable forward."""

from __future__ import annotations

import torch
from torch import nn

from ..refusal import attach_refusal as refusal
from .adapters import LoraForm
from .form import Form
from .mixture import RouterForm
from .states import MixerForm

__all__ = ["check_holders"]

_HANDED_ON = ({"sinks"}, {"e_score_correction_bias"})
"""Parameters that attention or a router reads; if something else did, the guard would stop it."""

_DTYPES = (torch.bfloat16, torch.float16)


def check_holders(model: nn.Module) -> None:
    """Refuse a model in which something else holds parameters, or is shared with a copy.

    Raises:
        ValueError: there is such a module, or one in another dtype; the sentence names it.
    """
    modules = {id(module) for module in model.modules()}
    of_adapters: set[int] = set()
    for name, module in model.named_modules():
        if isinstance(module, LoraForm):
            parts = (*module.lora_A.modules(), *module.lora_B.modules())
            of_adapters.update(id(part) for part in parts)
        elif isinstance(module, Form):
            _check_sources(name, module, modules)
        if id(module) in of_adapters:
            continue
        is_known = isinstance(module, Form | nn.Embedding) or {*module._parameters} in _HANDED_ON
        if module._parameters and not is_known:
            raise refusal(f"{name} ({type(module).__name__})", "it is not specified")
        may_be_float32 = isinstance(module, RouterForm | MixerForm)
        if not may_be_float32 and {*module._parameters} not in _HANDED_ON:
            _check_dtypes(name, module)


def _check_dtypes(name: str, module: nn.Module) -> None:
    for parameter in module._parameters.values():
        if parameter is not None and parameter.dtype not in _DTYPES:
            raise refusal(
                f"{name} in {parameter.dtype}",
                "a product has 15 bits of each number: leave the model in the dtype in which it "
                "was attached, without .float() or .to(torch.float32)",
            )


def _check_sources(name: str, form: Form, modules: set[int]) -> None:
    for following in form.own_followings():
        if any(id(owner) not in modules for owner, _ in following.sources):
            raise refusal(name, "it is a copy of a layer that shares its input with others")
