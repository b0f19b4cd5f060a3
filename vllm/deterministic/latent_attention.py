"""Latent attention, computed as attention over the keys and values that latents stand for.

vLLM's kernels multiply queries with a part of a projection first, and so attend over latents: other
numbers, rounded elsewhere. The specified ones are Transformers': each head has its keys and values,
and they are what is kept. (DeepSeek-AI, "DeepSeek-V2", 2024, section 2.1.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from vllm.logger import init_logger

if TYPE_CHECKING:
    from vllm.config import ModelConfig
    from vllm.engine.arg_utils import EngineArgs

logger = init_logger(__name__)


def attend_over_heads(args: EngineArgs) -> None:
    """Let the model of an engine, if it has latent attention, make its other attention layer.

    It is vLLM's own for ``VLLM_MLA_DISABLE=1``, which would hold for all engines of a process.

    Args:
        args: changed in place; their configuration of the model is known before all else.
    """
    create: Callable[[], ModelConfig] = args.create_model_config
    args.create_model_config = partial(_over_heads, create)


def _over_heads(create: Callable[[], ModelConfig]) -> ModelConfig:
    model = create()
    if not model.is_deepseek_mla:
        return model
    text = model.hf_text_config
    head_size = getattr(text, "qk_nope_head_dim", 0) + getattr(text, "qk_rope_head_dim", 0)
    if text.v_head_dim > head_size:
        raise ValueError(
            f"deterministic=True: heads of this latent attention have {text.v_head_dim} numbers of "
            f"values and {head_size} of keys, and more values than keys are not specified: leave "
            "the flag out."
        )
    arch = replace(model.model_arch_config, is_deepseek_mla=False, head_size=head_size)
    model.model_arch_config = arch
    latent = text.kv_lora_rank + text.qk_rope_head_dim
    logger.info(
        "deterministic: keys and values of each head are kept, %.1f times the memory of latents.",
        arch.total_num_kv_heads * (4 * head_size + 2) / (2 * latent),
    )
    return model
