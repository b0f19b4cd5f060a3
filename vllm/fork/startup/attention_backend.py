"""Attention backends that the fork adds to vLLM's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from vllm.config.attention import AttentionConfig
from vllm.fork.flags.fork_flags import ForkFlags
from vllm.fork.startup.model_config import config_of
from vllm.platforms import current_platform
from vllm.v1.attention.backends.registry import AttentionBackendEnum

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.engine.arg_utils import EngineArgs


def chosen_backends(args: EngineArgs) -> set[AttentionBackendEnum]:
    """Return what the user has chosen, by either of two arguments; nothing if neither is given."""
    chosen = AttentionConfig.validate_backend_before(args.attention_backend)
    return {chosen, args.attention_config.backend} - {None}


def check_attention_backend(args: EngineArgs) -> None:
    """Refuse XFORMERS where it would not be used: on CPUs vLLM ignores what is chosen.

    Raises:
        ValueError: it is chosen, and the platform is no NVIDIA GPU.
    """
    if AttentionBackendEnum.XFORMERS in chosen_backends(args) and not current_platform.is_cuda():
        raise ValueError(
            "The attention backend XFORMERS has kernels for NVIDIA GPUs alone: leave it out here."
        )


def use_mla_for_float32(args: EngineArgs) -> None:
    """Choose latent attention that computes in float32, in place: that for CPUs with AMX, which
    vLLM prefers there, has no kernels for it and ends the engine's start.
    """
    is_float32 = args.dtype in ("float32", "float", torch.float32)
    if not is_float32 or not current_platform.is_cpu() or chosen_backends(args):
        return
    if torch.cpu._is_amx_tile_supported() and hasattr(
        config_of(args).get_text_config(), "kv_lora_rank"
    ):
        args.attention_backend = AttentionBackendEnum.CPU_MLA


def check_head_size(vllm_config: VllmConfig) -> None:
    """Refuse heads that vLLM's attention on CPUs has no kernels for: their first request would end
    the engine. Exact and deterministic mode attend in other ways.

    Raises:
        ValueError: the model has such heads.
    """
    flags, model = ForkFlags.of(vllm_config), vllm_config.model_config
    attends_itself = flags.is_portable or flags.hf_compat == "exact"
    if not current_platform.is_cpu() or attends_itself or model.use_mla or model.is_attention_free:
        return
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    sizes, size = CPUAttentionBackend.get_supported_head_sizes(), model.get_head_size()
    if size not in sizes:
        raise ValueError(
            f"vLLM's attention on CPUs has no kernels for heads of {size} elements, only "
            f'for {", ".join(map(str, sizes))}: use hf_compat="exact" or deterministic=True.'
        )
