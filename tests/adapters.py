"""Adapters of random weights for the bundled model, as PEFT saves them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from peft import (
    IA3Config,
    LoraConfig,
    PeftConfig,
    PeftModel,
    PrefixTuningConfig,
    PromptTuningConfig,
    get_peft_model,
)
from transformers import AutoModelForCausalLM, PreTrainedModel

from tests.engines import MODEL

RANK = 8


def lora(**fields: Any) -> Callable[[], PeftConfig]:
    """Return what makes a LoRA of two projections, unless `fields` say something else."""
    common = {"r": RANK, "lora_alpha": 2 * RANK, "target_modules": ["q_proj", "v_proj"]}
    return lambda: LoraConfig(**{**common, "task_type": "CAUSAL_LM", **fields})


KINDS: dict[str, Callable[[], PeftConfig]] = {
    "plain": lora(),
    "embeddings": lora(target_modules=["q_proj", "embed_tokens"]),
    "tokens": lora(trainable_token_indices=[5, 6, 300]),
    "tokens by name": lora(trainable_token_indices={"embed_tokens": [5, 6]}),
    "parameters": lora(
        target_modules=["q_proj"], target_parameters=["mlp.gate_proj.weight"], r=4, lora_alpha=4
    ),
    "other parameters": lora(target_modules=[], target_parameters=["q_proj.weight"]),
    "whole modules": lora(modules_to_save=["lm_head"]),
    "bias": lora(bias="all"),
    "LoRA bias": lora(lora_bias=True),
    "DoRA": lora(use_dora=True),
    "rank": lora(r=8 * RANK),
    "aLoRA": lora(alora_invocation_tokens=[300, 301]),
    "OLoRA": lora(init_lora_weights="olora"),
    "IA3": lambda: IA3Config(task_type="CAUSAL_LM"),
    "prefix": lambda: PrefixTuningConfig(num_virtual_tokens=4, task_type="CAUSAL_LM"),
    "prompt": lambda: PromptTuningConfig(num_virtual_tokens=4, task_type="CAUSAL_LM"),
}


def base_model() -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()


def make_adapter(kind: str, folder: Path) -> Path:
    """Save an adapter whose weights, all of them random, change what the model says."""
    torch.manual_seed(0)
    model = get_peft_model(base_model(), KINDS[kind]())
    for parameter in model.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.05)
    model.save_pretrained(str(folder))
    return folder


def adapted_model(folder: Path) -> PeftModel:
    """Return what PEFT makes of a saved adapter."""
    return PeftModel.from_pretrained(base_model(), str(folder)).eval()
