"""Matrix products with Hugging Face's bits: PyTorch's, on plain weights, a request at a time.

How a kernel adds depends on the number of its rows. Hugging Face computes a prompt as one matrix
and every later token as one row, so in 16 bits a step of the engine is taken apart in the same way.
In float32, where the sums' last bits hardly ever choose a token, it is one product.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional
from transformers.pytorch_utils import Conv1D

from vllm.fork.live_weights.packed import ReadsWeights
from vllm.fork_kernels import row_products
from vllm.hf_layers.models import facts_of
from vllm.hf_layers.products.prompts_together import PromptsTogether
from vllm.hf_layers.products.row_counts import ManyRows, RowCounts, counts_of_layout
from vllm.hf_layers.products.single_row_products import (
    LayerType,
    Product,
    RowPlan,
    RowsApart,
    by_parts,
    conv1d,
    layout_of,
)
from vllm.hf_layers.step_rows import step_runs
from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod
from vllm.model_executor.layers.vocab_parallel_embedding import (
    UnquantizedEmbeddingMethod,
    VocabParallelEmbedding,
)
from vllm.platforms import current_platform

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


class HFLinearMethod(ReadsWeights, UnquantizedLinearMethod):
    """vLLM's method without packed weights: they stay as loaded.

    Source: ``torch.nn.Linear.forward``. Other platforms than CPU do so anyway.
    """

    def process_weights_after_loading(self, layer: Any) -> None:
        if not current_platform.is_cpu():
            super().process_weights_after_loading(layer)
        elif _keeps_one_product(layer):
            layer.cpu_linear = functional.linear
        else:
            ways = together(rows_apart(layer), functional.linear, [layer.weight])
            layer.cpu_linear = LinearByRequest(ways)


class HFConv1DMethod(ReadsWeights, UnquantizedLinearMethod):
    """The products of ``transformers.pytorch_utils.Conv1D``, whose weights are stored the other way
    round, which gives them another kernel.
    """

    def process_weights_after_loading(self, layer: Any) -> None:
        if _keeps_one_product(layer):
            layer.cpu_linear = functional.linear
            return
        stored = layer.weight.data.T.contiguous()  # [in_features, out_features]
        layer.weight.data = stored.T
        plan = RowPlan.of_weight(stored, has_bias=True, kind=Conv1D)
        by_row = many_rows(RowsApart(plan, conv1d), stored, conv1d, Conv1D)

        multiply = LinearByRequest(together(by_row, conv1d, [stored], Conv1D))

        def product(
            x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
        ) -> torch.Tensor:
            return multiply(x, weight.T, bias)

        layer.cpu_linear = product


class HFAddedBiasMethod(HFLinearMethod):
    """The products of ``FalconLinear``, which rounds them before it adds the bias."""

    def apply(self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """As ``LinearMethodBase.apply``."""
        product = super().apply(layer, x, None)
        return product if bias is None else product + bias


class HFEmbeddingMethod(ReadsWeights, UnquantizedEmbeddingMethod):
    """The same for the output embedding, whose packed copy vLLM keeps beside the weight.

    Hugging Face computes the logits of one position, whatever the request.
    """

    def process_weights_after_loading(self, layer: Any) -> None:
        if not current_platform.is_cpu():
            super().process_weights_after_loading(layer)
        else:
            layer.cpu_linear = functional.linear if _keeps_one_product(layer) else rows_apart(layer)


def _keeps_one_product(layer: Any) -> bool:
    """Whether a layer's rows need not be taken apart. A weight of three dimensions is that of a
    convolution, which vLLM keeps in a linear layer and computes elsewhere.
    """
    weight = layer.weight
    return weight.dtype == torch.float32 or weight.is_meta or weight.dim() != 2


_METHODS: dict[str, type[HFLinearMethod | HFConv1DMethod]] = {
    "linear": HFLinearMethod,
    "conv1d": HFConv1DMethod,
    "added_bias": HFAddedBiasMethod,
}
"""By `ModelFacts.products`."""


def use_plain_products(model: nn.Module, config: PreTrainedConfig) -> None:
    """Give every unquantised linear layer and embedding of `model` the methods above.

    Args:
        model: of vLLM.
        config: of its text part.
    """
    linear_method = _METHODS[facts_of(config).products]
    for layer in model.modules():
        method = getattr(layer, "quant_method", None)
        if isinstance(layer, LinearBase) and type(method) is UnquantizedLinearMethod:
            layer.quant_method = linear_method()
        elif (
            isinstance(layer, VocabParallelEmbedding) and type(method) is UnquantizedEmbeddingMethod
        ):
            layer.quant_method = HFEmbeddingMethod()


def rows_apart(layer: Any) -> Product:
    """Return the product of rows for the shape of a layer; some callers leave its bias out."""
    without = RowsApart(RowPlan.of_weight(layer.weight.data, has_bias=False))
    if getattr(layer, "bias", None) is None:
        return many_rows(without, layer.weight.data)
    with_bias = RowsApart(RowPlan.of_weight(layer.weight.data, has_bias=True))
    return many_rows(
        lambda x, weight, bias: (without if bias is None else with_bias)(x, weight, bias),
        layer.weight.data,
    )


def many_rows(
    by_row: Product,
    weight: torch.Tensor,
    product: Product = functional.linear,
    kind: LayerType = nn.Linear,
) -> ManyRows:
    """Return the product of rows for a weight: see `ManyRows`."""
    layout = layout_of(weight)
    return ManyRows(by_row, product, lambda has_bias: counts_of_layout(layout, has_bias, kind))


def common_order(parts: list[Any]) -> int | None:
    """Return in which order the fork's own product has the bits of rows with each weight, and the
    same for all; None if there is none, or rows need not be taken apart.

    Args:
        parts: have ``weight`` and ``bias``.
    """
    if any(_keeps_one_product(part) for part in parts):
        return None
    orders = {
        RowPlan.of_weight(part.weight.data, has_bias).order
        for part in parts
        for has_bias in {False, part.bias is not None}
    }
    order = orders.pop()
    return order if isinstance(order, int) and not orders else None


def side_by_side(parts: list[Any], sizes: list[int]) -> LinearByRequest | None:
    """Return the product with a fused weight of which each of `parts` has its own in Hugging Face.

    Single rows are multiplied with the whole weight at once, if the fork's product has the bits of
    all parts in one order: each of its outputs is a sum of its own. Prompts are multiplied with
    each part, or with the whole where that has the bits of the parts.

    Args:
        parts: have ``weight`` and ``bias``, views of the whole's.
        sizes: rows of each part.

    Returns:
        None if the parts have no common order, or need not be taken apart.
    """
    order = common_order(parts)
    if order is None:
        return None

    def rows(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return row_products(x, weight, bias, order)

    weights = [part.weight for part in parts]
    return LinearByRequest(together(rows, partial(by_parts, sizes), weights, parts=tuple(sizes)))


def together(
    by_row: Product,
    whole: Product,
    weights: list[torch.Tensor],
    kind: LayerType = nn.Linear,
    parts: tuple[int, ...] = (),
) -> PromptsTogether:
    """Return how the rows of a step are multiplied.

    Args:
        by_row: multiplies rows with the bits that each has alone.
        whole: multiplies a prompt.
        weights: with which it does.
        kind: of layer that Transformers has for them.
        parts: rows of each weight, if they are parts of one that `whole` is given.
    """
    layouts = [layout_of(one) for one in weights]

    def counts(has_bias: bool) -> list[RowCounts]:
        return [counts_of_layout(layout, has_bias, kind) for layout in layouts]

    if not parts:
        return PromptsTogether(by_row, whole, counts)
    (_, width), stride, dtype, device, place = layouts[0]
    fused = torch.Size((sum(parts), width)), stride, dtype, device, place

    def counts_of_fused(has_bias: bool) -> RowCounts:
        return counts_of_layout(fused, has_bias, kind, parts)

    many = ManyRows(by_row, functional.linear, counts_of_fused)
    return PromptsTogether(many, whole, counts, (functional.linear, counts_of_fused))


class LinearByRequest:
    """Multiplies the rows of each prompt with the bits that it has alone, and other rows likewise.

    Args:
        ways: to multiply.
    """

    def __init__(self, ways: PromptsTogether) -> None:
        self.ways = ways

    def __call__(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        """Return the products, [..., out_features].

        Args:
            x: [..., in_features], the tokens of a step, or rows that are no step's.
            weight: [out_features, in_features].
            bias: [out_features] or None.
        """
        rows = x if x.dim() == 2 else x.flatten(0, -2)
        # vLLM's parameters have Python called for each operator that they are given to.
        with torch._C.DisableTorchFunctionSubclass():
            product = self.ways(step_runs(rows.shape[0]), rows, weight, bias)
        return product if x.dim() == 2 else product.view(*x.shape[:-1], -1)
