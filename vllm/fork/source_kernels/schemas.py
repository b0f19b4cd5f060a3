"""Which operators of ``torch.ops._C`` are defined: signatures of vLLM 0.32.0's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vllm.fork.source_kernels import operators

_GATED = "(Tensor(a!) result, Tensor input) -> ()"
_MAPPED = "(Tensor(a!) out, Tensor input) -> ()"
_CAPABILITY = "(int cuda_device_capability) -> bool"

COMPUTED: dict[str, tuple[str, Callable[..., Any]]] = {
    "rms_norm": (
        "(Tensor(a!) result, Tensor input, Tensor? weight, float epsilon) -> ()",
        operators.rms_norm,
    ),
    "fused_add_rms_norm": (
        "(Tensor(a!) input, Tensor(b!) residual, Tensor? weight, float epsilon) -> ()",
        operators.fused_add_rms_norm,
    ),
    "rotary_embedding": (
        "(Tensor positions, Tensor(a!) query, Tensor(b!)? key, int head_size, "
        "Tensor cos_sin_cache, bool is_neox, int rope_dim_offset=0, bool inverse=False) -> ()",
        operators.rotary_embedding,
    ),
    "silu_and_mul": (_GATED, operators.silu_and_mul),
    "mul_and_silu": (_MAPPED, operators.mul_and_silu),
    "gelu_and_mul": (_MAPPED, operators.gelu_and_mul),
    "gelu_tanh_and_mul": (_MAPPED, operators.gelu_tanh_and_mul),
    "fatrelu_and_mul": (
        "(Tensor(a!) out, Tensor input, float threshold) -> ()",
        operators.fatrelu_and_mul,
    ),
    "silu_and_mul_with_clamp": (
        "(Tensor(a!) result, Tensor input, float limit, float alpha=1.0, float beta=0.0) -> ()",
        operators.silu_and_mul_with_clamp,
    ),
    "gelu_new": (_MAPPED, operators.gelu_new),
    "gelu_fast": (_MAPPED, operators.gelu_fast),
    "gelu_quick": (_MAPPED, operators.gelu_quick),
    "relu_squared": (_MAPPED, operators.relu_squared),
    "apply_repetition_penalties_": (
        "(Tensor(a!) logits, Tensor prompt_mask, Tensor output_mask, "
        "Tensor repetition_penalties) -> ()",
        operators.apply_repetition_penalties_,
    ),
    "weak_ref_tensor": ("(Tensor input) -> Tensor", operators.weak_ref_tensor),
    "cutlass_scaled_mm_supports_fp8": (_CAPABILITY, operators.supports_no_capability),
    "cutlass_scaled_mm_supports_block_fp8": (_CAPABILITY, operators.supports_no_capability),
    "cutlass_group_gemm_supported": (_CAPABILITY, operators.supports_no_capability),
}
"""Name to signature and implementation."""

ASKED: dict[str, tuple[str, Callable[..., Any]]] = {
    "get_max_shared_memory_per_block_device_attribute": (
        "(int device_id) -> int",
        operators.shared_memory_per_block,
    ),
}
"""Of ``torch.ops._C_cuda_utils``: what upstream asks of a GPU."""

REFUSED: dict[str, str] = {
    "static_scaled_fp8_quant": (
        "(Tensor(a!) result, Tensor input, Tensor scale, int[]? group_shape=None) -> ()"
    ),
    "dynamic_scaled_fp8_quant": "(Tensor(a!) result, Tensor input, Tensor(b!) scale) -> ()",
    "dynamic_per_token_scaled_fp8_quant": (
        "(Tensor(a!) result, Tensor input, Tensor(b!) scale, Tensor? scale_ub) -> ()"
    ),
    "rms_norm_static_fp8_quant": (
        "(Tensor(a!) result, Tensor input, Tensor weight, Tensor scale, float epsilon) -> ()"
    ),
    "fused_add_rms_norm_static_fp8_quant": (
        "(Tensor(a!) result, Tensor input, Tensor(b!) residual, Tensor weight, Tensor scale, "
        "float epsilon) -> ()"
    ),
    "rms_norm_dynamic_per_token_quant": (
        "(Tensor(a!) result, Tensor input, Tensor weight, Tensor(b!) scale, float epsilon, "
        "Tensor? scale_ub, Tensor(c!)? residual) -> ()"
    ),
    "fused_qk_norm_rope": (
        "(Tensor(a!) qkv, int num_heads_q, int num_heads_k, int num_heads_v, int head_dim, "
        "float eps, Tensor q_weight, Tensor k_weight, Tensor cos_sin_cache, bool is_neox, "
        "Tensor position_ids, int forced_token_heads_per_warp=-1) -> ()"
    ),
    "silu_and_mul_quant": "(Tensor(a!) result, Tensor input, Tensor scale) -> ()",
    "silu_and_mul_per_block_quant": (
        "(Tensor(a!) out, Tensor input, Tensor(b!) scales, int group_size, "
        "Tensor? scale_ub=None, bool is_scale_transposed=False) -> ()"
    ),
}
"""Name to signature: what vLLM's compiler passes name when they are imported."""
