"""The exponents of input channels, which are those of one rank however many there are.

They come from sums over the rows of all weights that share an input: vLLM has these in one matrix,
q with k and v, gate with up. See ``docs/numerics/products.md``, section 3.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed import ReduceOp, all_gather, all_reduce

from vllm.distributed import get_tp_group
from vllm.fork_kernels.portable.product import channel_statistics, equalising_exponents
from vllm.model_executor.layers.linear import (
    QKVParallelLinear,
    ReplicatedLinear,
    RowParallelLinear,
)


def exponents_of(layer: Any, weight: torch.Tensor) -> torch.Tensor:
    """Return the exponents of the channels of a layer, int8 [in_features of this rank].

    Args:
        layer: a linear layer of vLLM or an embedding split by rows.
        weight: what this rank has of its weight, [out_features, in_features].
    """
    weight = weight.contiguous()
    if isinstance(layer, ReplicatedLinear) or layer.tp_size == 1:
        return equalising_exponents(channel_statistics(weight))
    if isinstance(layer, RowParallelLinear):
        return exponents_of_columns(weight.unsqueeze(0), layer.tp_size, layer.tp_rank)[0]
    if isinstance(layer, QKVParallelLinear):
        return equalising_exponents(_of_all_heads(layer, weight))
    return equalising_exponents(_sum_over_ranks(channel_statistics(weight)))


def exponents_of_rows(weights: torch.Tensor, num_ranks: int) -> torch.Tensor:
    """Return the exponents of the channels of weights whose rows are split between ranks.

    Args:
        weights: what this rank has of some weights, each with an input of its own, [weights,
            out_features, in_features].
        num_ranks: of the tensor-parallel group.

    Returns:
        int8 [weights, in_features].
    """
    statistics = torch.stack([channel_statistics(weight) for weight in weights])
    if num_ranks > 1:
        statistics = _sum_over_ranks(statistics)
    return torch.stack([equalising_exponents(own) for own in statistics])


def exponents_of_columns(weights: torch.Tensor, num_ranks: int, rank: int) -> torch.Tensor:
    """The same of weights whose columns are split, which are the channels.

    Args:
        weights: [weights, out_features, in_features of this rank].
        num_ranks: of the tensor-parallel group.
        rank: this one.

    Returns:
        int8 [weights, in_features of this rank].
    """
    own = torch.stack([channel_statistics(weight) for weight in weights])
    found = [own]
    if num_ranks > 1:
        found = [torch.empty_like(own, device="cpu") for _ in range(num_ranks)]
        all_gather(found, own.cpu(), group=get_tp_group().cpu_group)
    exponents = torch.stack([equalising_exponents(whole) for whole in torch.cat(found, dim=1)])
    return exponents.chunk(num_ranks, dim=1)[rank].contiguous().to(own.device)


def _of_all_heads(layer: QKVParallelLinear, weight: torch.Tensor) -> torch.Tensor:
    """Return the statistics of q, k and v; several ranks may have the same heads of k and v."""
    num_queries = layer.num_heads * layer.head_size
    queries, others = weight[:num_queries], weight[num_queries:]
    replicated = _sum_over_ranks(channel_statistics(others.contiguous()))
    return (
        _sum_over_ranks(channel_statistics(queries.contiguous()))
        + replicated // layer.num_kv_head_replicas
    )


def _sum_over_ranks(statistics: torch.Tensor) -> torch.Tensor:
    total = statistics.cpu()
    all_reduce(total, op=ReduceOp.SUM, group=get_tp_group().cpu_group)
    return total.to(statistics.device)
