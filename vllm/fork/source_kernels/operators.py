"""Operators of ``torch.ops._C`` in plain PyTorch, for tensors of any device.

They round where the layers' own ``forward_native`` rounds. Those that write into an argument
return nothing, as upstream's do.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn import functional

_QUICK_GELU = 1.702
"""Of the sigmoid that stands for the normal distribution's integral (Hendrycks, Gimpel 2016)."""


def rms_norm(
    result: torch.Tensor, input: torch.Tensor, weight: torch.Tensor | None, epsilon: float
) -> None:
    """Write the norm of `input`, [..., hidden_size], into `result` of its shape."""
    result.copy_(_normed(input.float(), weight, epsilon))


def fused_add_rms_norm(
    input: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor | None, epsilon: float
) -> None:
    """Write the sum of both into `residual`, and its norm into `input`."""
    total = input.float() + residual.float()
    residual.copy_(total)
    input.copy_(_normed(total, weight, epsilon))


def _normed(x: torch.Tensor, weight: torch.Tensor | None, epsilon: float) -> torch.Tensor:
    normed = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon)
    return normed if weight is None else normed.to(weight.dtype) * weight


def rotary_embedding(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor | None,
    head_size: int,
    cos_sin_cache: torch.Tensor,
    is_neox: bool,
    rope_dim_offset: int = 0,
    inverse: bool = False,
) -> None:
    """Rotate query and key in place.

    Args:
        positions: int64 of any shape, one a token.
        query: [num_tokens, heads * head_size], or with more dimensions in that order.
        key: likewise, or None.
        head_size: of query and key.
        cos_sin_cache: [max_position, rotary_dim], cosines and then sines.
        is_neox: pairs are of the two halves and not of neighbours.
        rope_dim_offset: first of the rotary_dim elements of a head that turn.
        inverse: turn back.
    """
    cos, sin = cos_sin_cache[positions.flatten()].to(query.dtype).unsqueeze(1).chunk(2, dim=-1)
    turning = slice(rope_dim_offset, rope_dim_offset + cos_sin_cache.shape[-1])
    for heads in (query, key):
        if heads is not None:
            part = heads.view(positions.numel(), -1, head_size)[..., turning]
            _rotate(part, cos, -sin if inverse else sin, is_neox)


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, is_neox: bool) -> None:
    first, second = x.chunk(2, dim=-1) if is_neox else (x[..., ::2], x[..., 1::2])
    turned = first * cos - second * sin
    second.copy_(second * cos + first * sin)
    first.copy_(turned)


def silu_and_mul(result: torch.Tensor, input: torch.Tensor) -> None:
    """Write silu of the first half of each row times the second into `result`."""
    gate, up = input.chunk(2, dim=-1)
    result.copy_(functional.silu(gate) * up)


def mul_and_silu(out: torch.Tensor, input: torch.Tensor) -> None:
    """Write the first half of each row times silu of the second into `out`."""
    up, gate = input.chunk(2, dim=-1)
    out.copy_(up * functional.silu(gate))


def gelu_and_mul(out: torch.Tensor, input: torch.Tensor) -> None:
    """Write gelu of the first half of each row times the second into `out`."""
    gate, up = input.chunk(2, dim=-1)
    out.copy_(functional.gelu(gate) * up)


def gelu_tanh_and_mul(out: torch.Tensor, input: torch.Tensor) -> None:
    """As `gelu_and_mul`, with gelu's approximation by a tanh."""
    gate, up = input.chunk(2, dim=-1)
    out.copy_(functional.gelu(gate, approximate="tanh") * up)


def fatrelu_and_mul(out: torch.Tensor, input: torch.Tensor, threshold: float) -> None:
    """Write the first half of each row, 0 up to `threshold`, times the second into `out`."""
    gate, up = input.chunk(2, dim=-1)
    out.copy_(functional.threshold(gate, threshold, 0.0) * up)


def silu_and_mul_with_clamp(
    result: torch.Tensor, input: torch.Tensor, limit: float, alpha: float = 1.0, beta: float = 0.0
) -> None:
    """As `silu_and_mul` of clamped halves, with the sigmoid's argument scaled and `up` shifted."""
    gate, up = input.chunk(2, dim=-1)
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    result.copy_(gate * torch.sigmoid(alpha * gate) * (up + beta))


def gelu_new(out: torch.Tensor, input: torch.Tensor) -> None:
    """Write gelu's approximation by a tanh into `out`, with its operations rounded singly."""
    inner = math.sqrt(2.0 / math.pi) * (input + 0.044715 * torch.pow(input, 3.0))
    out.copy_(0.5 * input * (1.0 + torch.tanh(inner)))


def gelu_fast(out: torch.Tensor, input: torch.Tensor) -> None:
    """As `gelu_new`, with the tanh's argument factored."""
    inner = input * 0.7978845608 * (1.0 + 0.044715 * input * input)
    out.copy_(0.5 * input * (1.0 + torch.tanh(inner)))


def gelu_quick(out: torch.Tensor, input: torch.Tensor) -> None:
    """Write gelu's approximation by a sigmoid into `out`."""
    out.copy_(input * torch.sigmoid(_QUICK_GELU * input))


def relu_squared(out: torch.Tensor, input: torch.Tensor) -> None:
    """Write the square of relu into `out`."""
    out.copy_(functional.relu(input).square())


def apply_repetition_penalties_(
    logits: torch.Tensor,
    prompt_mask: torch.Tensor,
    output_mask: torch.Tensor,
    repetition_penalties: torch.Tensor,
) -> None:
    """Divide positive logits of seen tokens by the penalty, and multiply the others, in place.

    Args:
        logits: float32 [num_requests, vocab_size].
        prompt_mask: bool of the same shape: tokens of the prompts.
        output_mask: likewise of the answers.
        repetition_penalties: float32 [num_requests].
    """
    penalties = repetition_penalties.unsqueeze(1)
    factors = torch.where(logits > 0, 1.0 / penalties, penalties)
    logits.mul_(torch.where(prompt_mask | output_mask, factors, 1.0))


def shared_memory_per_block(device_id: int) -> int:
    """Return the bytes of shared memory that a block of threads may ask for on a GPU."""
    properties: Any = torch.cuda.get_device_properties(device_id)
    return int(properties.shared_memory_per_block_optin)


def supports_no_capability(cuda_device_capability: int) -> bool:
    """Whether compiled products of eight bits are there: on no GPU."""
    return False


def weak_ref_tensor(input: torch.Tensor) -> torch.Tensor:
    """Return a tensor over the memory of `input` that does not keep it.

    CUDA graphs own the memory of what they compute; a tensor that kept it would stop the next
    graph from using it again.
    """
    strong = input.untyped_storage()
    # No call of CUDA, of which some are not allowed while a graph is recorded.
    weak = torch._C._construct_storage_from_data_pointer(
        strong.data_ptr(), input.device, strong.nbytes()
    )
    return input.new_empty(0).set_(weak, input.storage_offset(), input.size(), input.stride())
