"""Which models are refused at once, by their class, dtype, place and configuration."""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedModel

from vllm.fork_kernels.portable.product import has_kernels

from ..refusal import attach_refusal as refusal
from .interface import NAME, NAME_IN_TRAINING
from .states import check_states, is_mixer


def check_model(model: Any, *, training: bool = False) -> None:
    """Refuse what has no portable form as a whole.

    Args:
        model: to be attached.
        training: whether it is to be trained.

    Raises:
        TypeError: `model` is no ``PreTrainedModel``.
        ValueError: it is attached already, in training, quantised, neither bfloat16 nor float16, on
            several devices or on one without kernels, or has an encoder.
    """
    if not isinstance(model, PreTrainedModel):
        order = " Attach the model first, and then call get_peft_model." if training else ""
        raise TypeError(
            f"attach takes a PreTrainedModel of Transformers, not {type(model)}.{order}"
        )
    if training and any(type(one).__module__.startswith("peft.") for one in model.modules()):
        raise refusal(
            type(model).__name__,
            "PEFT has put adapters on it: attach the model first, and then call get_peft_model",
        )
    name = type(model).__name__
    if model.config._attn_implementation in (NAME, NAME_IN_TRAINING):
        raise refusal(name, "it already has the kernels")
    if model.training and not training:
        raise refusal(
            name,
            "it is in training mode, and the kernels have no gradients: call eval(), or "
            "attach(model, training=True)",
        )
    if getattr(model, "hf_quantizer", None) is not None or hasattr(
        model.config, "quantization_config"
    ):
        raise refusal(name, "it is quantised, and only bfloat16 and float16 weights are specified")
    _check_parameters(model, name)
    check_states(model, training=training)
    if model.config.is_encoder_decoder:
        raise refusal(name, "it has an encoder, and only causal attention is specified")


def _check_parameters(model: PreTrainedModel, name: str) -> None:
    if not has_kernels(model.device):
        raise refusal(name, f"it is on {model.device}, for which there are no kernels")
    # Routers and decays that Transformers keeps in float32; of others `check_holders` speaks.
    kept = {*(model._keep_in_fp32_modules_strict or ())}
    mixers = [module for module in model.modules() if is_mixer(module)]
    kept |= {name for module in mixers for name in module._parameters}
    for parameter_name, parameter in model.named_parameters():
        if parameter.device != model.device:
            raise refusal(
                name, f"{parameter_name} is on {parameter.device}, and others on {model.device}"
            )
        is_kept = any(part in parameter_name for part in kept)
        if parameter.dtype not in (torch.bfloat16, torch.float16) and not is_kept:
            raise refusal(
                name,
                f"{parameter_name} is {parameter.dtype}, and the kernels are for models in "
                "torch.bfloat16 or torch.float16",
            )
