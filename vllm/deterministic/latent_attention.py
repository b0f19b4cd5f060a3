"""Latent attention, computed as attention over the keys and values that latents stand for.

vLLM's kernels multiply queries with a part of a projection first, and so attend over latents: other
numbers, rounded elsewhere. The specified ones are Transformers': each head has its keys and values,
and they are what is kept. (DeepSeek-AI, "DeepSeek-V2", 2024, section 2.1.)
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from vllm.fork.flags.fork_flags import ForkFlags
from vllm.logger import init_logger

if TYPE_CHECKING:
    from vllm.config import VllmConfig

logger = init_logger(__name__)


def attend_over_heads(vllm_config: VllmConfig) -> None:
    """Let models with latent attention make their other attention layer, in place.

    It is vLLM's own for ``VLLM_MLA_DISABLE=1``, which would hold for all engines of a process.
    """
    model = vllm_config.model_config
    if not ForkFlags.of(vllm_config).is_portable or not model.is_deepseek_mla:
        return
    text = model.hf_text_config
    head_size = getattr(text, "qk_nope_head_dim", 0) + getattr(text, "qk_rope_head_dim", 0)
    arch = replace(model.model_arch_config, is_deepseek_mla=False, head_size=head_size)
    model.model_arch_config = arch
    latent = text.kv_lora_rank + text.qk_rope_head_dim
    heads = model.get_num_kv_heads(vllm_config.parallel_config)
    logger.info(
        "deterministic: keys and values of each head are kept, %.0f times the memory of latents.",
        heads * (4 * head_size + 2) / (2 * latent),
    )
