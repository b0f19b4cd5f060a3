"""Projections that vLLM stores as one matrix, computed as the separate ones of Hugging Face.

A matrix product over the fused weight may round an element differently from the product over the
part it belongs to: kernels choose how to add by the shape of the weight. Only the computation is
split: the parameter, its loading and its tensor parallelism stay vLLM's.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import wraps
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from vllm import envs
from vllm.fork.live_weights.packed import PackedParameter, PacksWeights
from vllm.fork.live_weights.upstream_layers import pack_kernel_again, packing_of
from vllm.hf_layers.layers.linear import HFLinearMethod, LinearByRequest, common_order, side_by_side
from vllm.hf_layers.products.prompts_together import PromptsTogether
from vllm.logger import init_logger
from vllm.model_executor.determinism.batch_invariant import linear_batch_invariant
from vllm.model_executor.layers.linear import (
    LinearBase,
    MergedColumnParallelLinear,
    QKVParallelLinear,
    UnquantizedLinearMethod,
)
from vllm.platforms import current_platform

logger = init_logger(__name__)

ShardId = str | int | tuple[int, ...] | None
"""What a weight loader is told about a checkpoint's matrix: its part, parts, or None for all."""

_QKV = {"q": 0, "k": 1, "v": 2}


def split_projections(model: nn.Module, required: bool) -> None:
    """Make the fused projections of `model` compute their parts separately.

    Called between a model's construction and its loading, which tells what is one matrix in Hugging
    Face too. Calling it again changes nothing.

    Args:
        model: any model of vLLM.
        required: whether a layer that cannot be split is an error, or only logged.

    Raises:
        ValueError: a fused projection is quantised, and `required`.
    """
    for name, layer in model.named_modules():
        if not isinstance(layer, QKVParallelLinear | MergedColumnParallelLinear):
            continue
        if isinstance(layer.quant_method, SplitLinearMethod):
            continue
        if not isinstance(layer.quant_method, UnquantizedLinearMethod):
            _cannot_split(name, layer, required)
            continue
        sources = _num_sources(model, name)
        if sources != 1:
            layer.quant_method = SplitLinearMethod(layer, layer.quant_method, sources)


def _cannot_split(name: str, layer: LinearBase, required: bool) -> None:
    method = type(layer.quant_method).__name__
    if required:
        raise ValueError(
            f"split_qkv=True cannot split {name}, which is quantised ({method}): leave the flag "
            "out, or use an unquantised model."
        )
    logger.warning_once("hf_compat: quantised projections (%s) stay fused.", method)


def _num_sources(model: nn.Module, name: str) -> int | None:
    """Return how many modules `name` is packed from by its model's own account; None without one.

    Source: ``packed_modules_mapping`` of vLLM's model classes; the innermost that has the name.
    """
    parents = name.split(".")
    last = parents.pop()
    for depth in range(len(parents), -1, -1):
        parent = model.get_submodule(".".join(parents[:depth]))
        mapping = getattr(parent, "packed_modules_mapping", None)
        if isinstance(mapping, dict) and last in mapping:
            return len(mapping[last])
    return None


def part_sizes(
    partition_sizes: Sequence[int], loaded: Sequence[ShardId], sources: int | None
) -> list[int] | None:
    """Return the sizes of the parts that are matrices of their own in Hugging Face.

    Args:
        partition_sizes: rows of vLLM's parts on this rank.
        loaded: how the checkpoint's matrices were loaded; nothing for random weights.
        sources: see `_num_sources`.

    Returns:
        sizes in the order of the rows, at least two, or None if the matrix is not to be split.
    """
    if None in loaded or sources == 1:
        return None
    if not loaded:
        return list(partition_sizes) if sources == len(partition_sizes) > 1 else None
    spans = sorted({_indices(shard) for shard in loaded})
    if [index for span in spans for index in span] != list(range(len(partition_sizes))):
        return None
    sizes = [sum(partition_sizes[index] for index in span) for span in spans]
    return sizes if len(sizes) > 1 else None


def _indices(shard: ShardId) -> tuple[int, ...]:
    if isinstance(shard, tuple):
        return shard
    return (_QKV[shard],) if isinstance(shard, str) else (int(shard or 0),)


class SplitLinearMethod(UnquantizedLinearMethod):
    """Applies the parts of a fused weight one after the other.

    The parts are views of the parameter. Where the platform packs weights (CPU), each part is
    packed by itself and the parameter is given up, as upstream does with the whole.
    """

    def __init__(
        self, layer: LinearBase, whole: UnquantizedLinearMethod, sources: int | None
    ) -> None:
        super().__init__()
        self._whole = whole
        self._sources = sources
        self._loaded: list[ShardId] = []
        self._sizes: list[int] | None = None
        self._packed: list[SimpleNamespace] | None = None
        self._side_by_side: LinearByRequest | None = None
        self._observe_loading(layer.weight)

    @property
    def sizes(self) -> list[int] | None:
        """Rows of each part; None for a matrix that is one in Hugging Face too."""
        return self._sizes

    @property
    def whole(self) -> UnquantizedLinearMethod:
        """What multiplies with each part."""
        return self._whole

    @property
    def order_of_rows(self) -> int | None:
        """In which order the fork's product multiplies rows with all parts at once, if it does."""
        if self._side_by_side is None or self._packed is None:
            return None
        return common_order(self._packed)

    @property
    def ways_of_prompts(self) -> PromptsTogether | None:
        """How the rows of a step are multiplied with all parts at once, if they are."""
        return None if self._side_by_side is None else self._side_by_side.ways

    def _observe_loading(self, weight: Any) -> None:
        load = weight.weight_loader

        @wraps(load)
        def observed(param: Any, loaded_weight: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            self._loaded.append(args[0] if args else kwargs.get("loaded_shard_id"))
            return load(param, loaded_weight, *args, **kwargs)

        weight.weight_loader = observed

    def process_weights_after_loading(self, layer: Any) -> None:
        """Decide whether to split, and pack the parts as the platform packs weights."""
        self._sizes = part_sizes(layer.output_partition_sizes, self._loaded, self._sources)
        self._packed = None
        self._side_by_side = None
        if self._sizes is None:
            self._whole.process_weights_after_loading(layer)
        elif current_platform.is_cpu():
            self._pack(layer, self._sizes)

    def packed_parameters(self, layer: Any) -> dict[str, PackedParameter]:
        """As in `PacksWeights`; each part by itself."""
        if self._sizes is None:
            whole = self._packing_of_whole()
            return {} if whole is None else whole.packed_parameters(layer)
        if self._packed is None or layer.weight.numel():
            return {}  # the parts are views of the parameter
        packed = {"weight": PackedParameter(is_read=False, sizes=self._sizes)}
        if self._packed[0].bias is not None:
            packed["bias"] = PackedParameter(is_read=True, sizes=self._sizes)
        return packed

    def pack_again(self, layer: Any, name: str, part: int, rows: torch.Tensor) -> None:
        """As in `PacksWeights`."""
        if self._packed is None:
            whole = self._packing_of_whole()
            assert whole is not None
            whole.pack_again(layer, name, part, rows)
        elif name == "bias":
            self._packed[part].bias.data.copy_(rows)  # a view of the layer's, or in float32
        else:
            pack_kernel_again(self._packed[part], rows)

    def _packing_of_whole(self) -> PacksWeights | None:
        return packing_of(SimpleNamespace(quant_method=self._whole))

    def _pack(self, layer: Any, sizes: list[int]) -> None:
        biases = [None] * len(sizes) if layer.bias is None else layer.bias.data.split(sizes)
        parts = [
            SimpleNamespace(
                weight=nn.Parameter(weight, requires_grad=False),
                bias=None if bias is None else nn.Parameter(bias, requires_grad=False),
            )
            for weight, bias in zip(layer.weight.data.split(sizes), biases, strict=True)
        ]
        for part in parts:
            self._whole.process_weights_after_loading(part)
        self._packed = parts
        if isinstance(self._whole, HFLinearMethod):
            self._side_by_side = side_by_side(parts, sizes)
        if all(part.weight.numel() == 0 for part in parts):  # packed: the copy replaces the weight
            layer.weight = parts[0].weight

    def apply(self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """Return the parts' products side by side.

        Args:
            layer: the layer this method was made for.
            x: [..., in_features].
            bias: [sum of the parts' rows], the layer's own; or None.

        Returns:
            [..., sum of the parts' rows], of the dtype of `x`.
        """
        if self._sizes is None:
            return self._whole.apply(layer, x, bias)
        if self._side_by_side is not None:
            return self._side_by_side(x, layer.weight, bias)
        if self._packed is not None:
            parts = [
                part.cpu_linear(x, part.weight, None if bias is None else part.bias)
                for part in self._packed
            ]
        else:
            weights = layer.weight.split(self._sizes)
            biases = [None] * len(weights) if bias is None else bias.split(self._sizes)
            parts = [
                self._multiply(layer, x, weight, part_bias)
                for weight, part_bias in zip(weights, biases, strict=True)
            ]
        return torch.cat(parts, dim=-1)

    def _multiply(
        self, layer: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        if envs.VLLM_BATCH_INVARIANT and current_platform.is_cuda_alike():
            return linear_batch_invariant(x, weight, bias)
        return self._gemm_impl(layer, x, weight, bias)
