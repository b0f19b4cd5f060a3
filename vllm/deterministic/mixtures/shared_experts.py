"""Experts that every token goes to; see ``docs/numerics/operations.md``, "Mixtures of experts"."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from vllm.fork_kernels.portable.functions import Function, portable_map
from vllm.model_executor.layers.fused_moe.runner.moe_runner import MoERunner
from vllm.model_executor.layers.linear import RowParallelLinear
from vllm.model_executor.models.qwen2_moe import Qwen2MoeMLP
from vllm.model_executor.models.qwen3_moe import Qwen3MoeMLP


def add_parts_of_shared_experts(model: nn.Module) -> None:
    """Let the linear layers of shared experts add the ranks' parts, which the mixture does not."""
    for runner in model.modules():
        if isinstance(runner, MoERunner) and runner.shared_experts is not None:
            for layer in runner.shared_experts.modules():
                if isinstance(layer, RowParallelLinear):
                    layer.reduce_results = True


def use_portable_shared_expert(layer: nn.Module) -> bool:
    """Give an expert that weighs its result a portable sigmoid; return whether `layer` is one."""
    is_weighed = type(layer) in (Qwen2MoeMLP, Qwen3MoeMLP) and layer.expert_gate is not None
    if is_weighed:
        layer.forward = partial(_forward_weighed, layer)
    return is_weighed


def _forward_weighed(layer: Any, x: torch.Tensor) -> torch.Tensor:
    gate_up, _ = layer.gate_up_proj(x)
    output, _ = layer.down_proj(layer.act_fn(gate_up))
    logits, _ = layer.expert_gate(x)
    return portable_map(logits.contiguous(), Function.SIGMOID) * output
