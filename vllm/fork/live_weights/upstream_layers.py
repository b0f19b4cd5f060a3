"""What upstream's layers have packed on CPUs: oneDNN's and other kernels' layouts of their weights.

Why: Upstream's own updates (``initialize_layerwise_reload``) make layers anew whose parameters were
  loaded. On CPUs a layer without its parameter cannot be loaded by anything else, and a head that
  is tied to an embedding keeps the layout of the old one.
Upstream status: Bug in 0.32.0, to be reported (upstream-reports/reload-tied-head-cpu.md).
Exit condition: Upstream makes anew what it has packed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from vllm import _custom_ops as ops
from vllm.fork.live_weights.packed import (
    PackedParameter,
    PacksWeights,
    WeightsLostError,
    replace_packed,
)
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase
from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm
from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod
from vllm.platforms import current_platform


class UnknownPacking(Exception):
    """A layer's method keeps something of its weights that is not known here."""


def packing_of(layer: Any) -> PacksWeights | None:
    """Return what a layer says of its packed weights; None if it has none.

    Raises:
        UnknownPacking: it has something that cannot be made anew.
    """
    if hasattr(layer, "kv_b_proj") and hasattr(layer, "process_weights_after_loading"):
        raise UnknownPacking("latent attention keeps products of its weights")
    method = getattr(layer, "quant_method", None)
    if isinstance(method, PacksWeights):
        return method
    if not isinstance(method, QuantizeMethodBase):
        return None
    if type(method) in (UnquantizedLinearMethod, UnquantizedEmbeddingMethod):
        return LinearKernels() if current_platform.is_cpu() else None
    if _has_plain_experts(method) and current_platform.is_cpu():
        return ExpertKernels()
    raise UnknownPacking(f"{type(method).__name__} packs weights in a way of its own")


def _has_plain_experts(method: QuantizeMethodBase) -> bool:
    # vLLM's modules of experts import what imports this module.
    from vllm.model_executor.layers.fused_moe import unquantized_fused_moe_method as upstream

    return type(method) is upstream.UnquantizedFusedMoEMethod


class LinearKernels:
    """Weights of upstream's linear layers and embeddings, in the layout of their kernel."""

    def packed_parameters(self, layer: Any) -> dict[str, PackedParameter]:
        """As in `PacksWeights`."""
        if hasattr(layer, "_cpu_unpacked_conv_weight"):
            raise UnknownPacking("the weight of a convolution is packed")
        if not _kept_by(getattr(layer, "cpu_linear", None)):
            return {}
        return {"weight": PackedParameter(is_read=layer.weight.numel() > 0)}

    def pack_again(self, layer: Any, name: str, part: int, rows: torch.Tensor) -> None:
        """As in `PacksWeights`."""
        pack_kernel_again(layer, rows)


class ExpertKernels:
    """Weights of upstream's experts, whose parameters have the layout of their kernel."""

    def packed_parameters(self, layer: Any) -> dict[str, PackedParameter]:
        """As in `PacksWeights`; each expert by itself."""
        if _experts_of(layer)._use_zentorch:
            return {}
        each = PackedParameter(is_read=False, sizes=[1] * len(layer.w2_weight))
        if getattr(layer, "w13_bias", None) is not None:
            raise UnknownPacking("biases of experts are packed")
        return {"w13_weight": each, "w2_weight": each}

    def pack_again(self, layer: Any, name: str, part: int, rows: torch.Tensor) -> None:
        """As in `PacksWeights`.

        Source: ``CPUUnquantizedExperts.process_weights_after_loading``, which adds zeros for the
        kernel's tiles.
        """
        experts = _experts_of(layer)
        target = getattr(layer, name).data[part : part + 1]
        if name == "w13_weight":
            gate, up = (_padded(half, target.shape[1] // 2, dim=1) for half in rows.chunk(2, dim=1))
            rows = torch.cat([gate, up], dim=1)
        else:
            rows = _padded(rows, target.shape[2], dim=2)
        target.copy_(ops.cpu_prepack_moe_weight(rows.contiguous(), experts.isa))


def pack_kernel_again(layer: Any, weight: torch.Tensor) -> None:
    """Give the kernel of a linear layer another weight, in the memory that has the old one.

    Args:
        layer: with the ``cpu_linear`` of ``dispatch_cpu_unquantized_gemm``.
        weight: [out_features, in_features].

    Raises:
        RuntimeError: another kernel takes the new weight.
        WeightsLostError: likewise, and the old one's memory is free.
    """
    kept = _kept_by(layer.cpu_linear)
    handlers = [one for one in kept.values() if isinstance(one, ops.CPUDNNLGEMMHandler)]
    for handler in handlers:
        _free(handler)
    new = SimpleNamespace(weight=nn.Parameter(weight.contiguous(), requires_grad=False))
    dispatch_cpu_unquantized_gemm(new, remove_weight=True)
    made = _kept_by(new.cpu_linear)
    if kept.keys() != made.keys():
        error = WeightsLostError if handlers else RuntimeError
        raise error("The new weights are given to another kernel than those before.")
    for name, old in kept.items():
        if isinstance(old, torch.Tensor):
            replace_packed(old, made[name])
        else:
            _hand_over(old, made[name])


def _free(handler: Any) -> None:
    """Free the memory of a handler before that of another is taken."""
    handler.dtor(handler.handler_tensor.item())
    handler.handler_tensor.zero_()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc
    if trim is not None:  # else what is free between other blocks stays resident, and more is taken
        trim(0)


def _hand_over(old: Any, new: Any) -> None:
    """Let a handler that is free have what another one has; graphs know its tensor."""
    old.handler_tensor.copy_(new.handler_tensor)
    new.handler_tensor = None  # or its end would free it


def _kept_by(kernel: Callable[..., Any] | None) -> dict[str, Any]:
    """Return what a ``cpu_linear`` keeps of its weight, by the names it has there."""
    cells_of_kernel = getattr(kernel, "__closure__", None)
    if kernel is None or cells_of_kernel is None:
        return {}
    cells = zip(kernel.__code__.co_freevars, cells_of_kernel, strict=True)
    kept = {name: cell.cell_contents for name, cell in cells}
    return {
        name: value
        for name, value in kept.items()
        if isinstance(value, torch.Tensor | ops.CPUDNNLGEMMHandler)
    }


def _experts_of(layer: Any) -> Any:
    return layer.quant_method.moe_kernel.fused_experts


def _padded(rows: torch.Tensor, size: int, dim: int) -> torch.Tensor:
    """Return `rows` with zeros up to a size of one dimension."""
    if rows.shape[dim] == size:
        return rows
    shape = [*rows.shape]
    shape[dim] = size - rows.shape[dim]
    return torch.cat([rows, rows.new_zeros(shape)], dim=dim)
