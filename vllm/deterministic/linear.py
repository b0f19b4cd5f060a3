"""Linear layers and the output embedding with portable bits; see ``docs/numerics/products.md``."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from vllm.deterministic import fusion
from vllm.deterministic.equalisation import exponents_of
from vllm.distributed import tensor_model_parallel_all_gather
from vllm.fork.live_weights.packed import PackedParameter
from vllm.fork_kernels.portable.product import (
    PackedWeight,
    pack_weight,
    portable_product,
    repack_weight,
    sum_partials,
)
from vllm.model_executor.layers.linear import RowParallelLinear, UnquantizedLinearMethod
from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod


class PortableLinearMethod(UnquantizedLinearMethod):
    """Multiplies with a packed weight, which takes the place of the parameter.

    Attributes:
        packed: the weight, once it is loaded.
    """

    def __init__(self) -> None:
        super().__init__()
        self.packed: PackedWeight | None = None

    def process_weights_after_loading(self, layer: Any) -> None:
        """Pack the weight; as many bytes as it had, and 0.8 % more."""
        self.packed = self._pack(layer, layer.weight.data)
        release_weight(layer)

    def packed_parameters(self, layer: Any) -> dict[str, PackedParameter]:
        """As in `PacksWeights`."""
        return {"weight": PackedParameter(is_read=False)}

    def pack_again(self, layer: Any, name: str, part: int, rows: torch.Tensor) -> None:
        """As in `PacksWeights`."""
        assert self.packed is not None
        repack_weight(self.packed, rows, exponents_of(layer, rows))

    def _pack(self, layer: Any, weight: torch.Tensor) -> PackedWeight:
        parts = layer.tp_size if isinstance(layer, RowParallelLinear) else 1
        return pack_weight(weight.contiguous(), exponents_of(layer, weight), parts=parts)

    def apply(self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """Return the layer's product (``LinearMethodBase.apply``).

        Args:
            layer: the layer this method was made for.
            x: bfloat16 or float16 [..., in_features], of this rank.
            bias: [out_features] or None.

        Returns:
            [..., out_features], of the dtype of `x`; the whole sum where input channels are split
            between ranks.
        """
        assert self.packed is not None
        fusion.takes(self.packed, x)
        if not adds_ranks(layer):
            return portable_product(x, self.packed, bias)
        sums = portable_product(x, self.packed, dtype=torch.float32).flatten(0, -2)
        product = sum_partials(sums_of_ranks(sums), whole_bias(layer, bias), x.dtype)
        return product.view(*x.shape[:-1], -1)

    def sums(self, layer: Any, rows: torch.Tensor) -> torch.Tensor:
        """Return the layer's product before bias and rounding.

        Args:
            layer: the layer this method was made for.
            rows: bfloat16 or float16 [n, in_features], of this rank.

        Returns:
            float32 [n, out_features], of all ranks where they split the input channels.
        """
        assert self.packed is not None
        fusion.takes(self.packed, rows)
        sums = portable_product(rows, self.packed, dtype=torch.float32)
        return sum_partials(sums_of_ranks(sums)) if adds_ranks(layer) else sums


class PortableEmbeddingMethod(UnquantizedEmbeddingMethod):
    """Looks rows up, which is exact, and multiplies with the packed table where it is the head.

    Args:
        is_head: whether logits are computed with the table.
        is_looked_up: whether rows of it are embeddings; its parameter stays then.

    Attributes:
        packed: the table, once it is loaded, if it is the head.
    """

    def __init__(self, is_head: bool, is_looked_up: bool) -> None:
        super().__init__()
        self._is_head = is_head
        self._is_looked_up = is_looked_up
        self.packed: PackedWeight | None = None

    def process_weights_after_loading(self, layer: Any) -> None:
        """Pack the table of a head."""
        if self._is_head:
            self.packed = self._pack(layer, layer.weight.data)
            if not self._is_looked_up:
                release_weight(layer)

    def packed_parameters(self, layer: Any) -> dict[str, PackedParameter]:
        """As in `PacksWeights`."""
        return {"weight": PackedParameter(is_read=self._is_looked_up)} if self._is_head else {}

    def pack_again(self, layer: Any, name: str, part: int, rows: torch.Tensor) -> None:
        """As in `PacksWeights`."""
        assert self.packed is not None
        repack_weight(self.packed, rows, exponents_of(layer, rows))

    def _pack(self, layer: Any, weight: torch.Tensor) -> PackedWeight:
        return pack_weight(weight.contiguous(), exponents_of(layer, weight))

    def apply(self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """Return logits, float32 [..., vocabulary of this rank], of x [..., hidden_size].

        Raises:
            RuntimeError: no logits were expected of this embedding.
        """
        if self.packed is None:
            raise RuntimeError(
                "deterministic=True does not know this model's output embedding: it is neither "
                "a ParallelLMHead nor a tied input embedding. Leave the flag out."
            )
        return portable_product(x, self.packed, bias, dtype=torch.float32)


def release_weight(layer: Any, name: str = "weight") -> None:
    """Let go of a parameter, which nothing reads any more, but keep its dtype."""
    setattr(layer, name, nn.Parameter(getattr(layer, name).data.new_empty(0), requires_grad=False))


def adds_ranks(layer: Any) -> bool:
    """Return whether the input channels of a linear layer are split between ranks."""
    return isinstance(layer, RowParallelLinear) and layer.tp_size > 1


def whole_bias(layer: Any, bias: torch.Tensor | None) -> torch.Tensor | None:
    """Return the bias to be added, which vLLM gives to one of the ranks that split channels."""
    if not adds_ranks(layer):
        return bias
    return None if layer.skip_bias_add else layer.bias


def sums_of_ranks(partial: torch.Tensor) -> torch.Tensor:
    """Return what all ranks have of [n, out_features], [ranks, n, out_features]."""
    gathered = tensor_model_parallel_all_gather(partial, dim=0)
    return gathered.view(-1, *partial.shape).contiguous()
