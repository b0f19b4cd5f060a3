"""Which numbers of ranks the heads of a model can be divided among."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


def working_sizes(num_heads: int, num_kv_heads: int) -> list[int]:
    """Return the tensor parallel sizes that give each rank whole heads, in ascending order.

    Every rank has the same number of query heads, and of key-value heads at least one: the same
    number each, or one that several ranks hold.

    Source: ``QKVParallelLinear.__init__`` of vLLM.
    """
    return [
        size
        for size in range(1, num_heads + 1)
        if num_heads % size == 0 and (num_kv_heads % size == 0 or size % num_kv_heads == 0)
    ]


def check_tensor_parallel_size(size: int, config: PreTrainedConfig) -> None:
    """Check that the heads of the model can be divided among `size` ranks.

    Raises:
        ValueError: they cannot; the sentence lists the sizes that work.
    """
    num_heads = getattr(config, "num_attention_heads", None)
    if not isinstance(num_heads, int):  # a model without attention, or with its own name for it
        return
    num_kv_heads = getattr(config, "num_key_value_heads", None) or num_heads
    sizes = working_sizes(num_heads, num_kv_heads)
    if size not in sizes:
        raise ValueError(
            f"tensor_parallel_size={size} cannot divide {num_heads} attention heads and "
            f"{num_kv_heads} key-value heads: use one of {', '.join(map(str, sizes))}."
        )
