"""What ``hf_compat="exact"`` asks of an engine, before its configuration is made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm.hf_numerics.dtype import hf_dtype
from vllm.platforms import current_platform
from vllm.transformers_utils.config import get_config

if TYPE_CHECKING:
    from vllm.engine.arg_utils import EngineArgs
    from vllm.fork.flags import ForkFlags

LOAD_FORMAT = "hf_exact"
"""Name of `loader.ExactLoader` among vLLM's model loaders."""

_EXECUTOR = "vllm.hf_numerics.executor.ExactExecutor"


def prepare_engine_args(args: EngineArgs, flags: ForkFlags) -> None:
    """Choose what exact mode needs, in place; no-op in other modes.

    Raises:
        ValueError: the arguments ask for something that changes bits or that the mode has not.
    """
    if flags.hf_compat != "exact":
        return
    _refuse(args)
    args.load_format = LOAD_FORMAT
    if args.dtype == "auto":
        config = get_config(args.model, args.trust_remote_code, args.revision, args.code_revision)
        args.dtype = hf_dtype(args.model, args.revision, config) or args.dtype
    args.enforce_eager = True
    args.enable_prefix_caching = False
    args.enable_chunked_prefill = False
    args.async_scheduling = False  # tokens are read from the host
    if current_platform.is_cpu():
        args.distributed_executor_backend = _EXECUTOR


def _refuse(args: EngineArgs) -> None:
    reasons = {
        "enable_prefix_caching=True": (args.enable_prefix_caching, "prompts are computed whole"),
        "enable_chunked_prefill=True": (args.enable_chunked_prefill, "prompts are computed whole"),
        f"load_format={args.load_format!r}": (
            args.load_format not in ("auto", "hf", "safetensors", LOAD_FORMAT),
            "Transformers loads the model",
        ),
        f"quantization={args.quantization!r}": (
            args.quantization is not None,
            "Transformers reads the quantization from the model's configuration",
        ),
        f"kv_cache_dtype={args.kv_cache_dtype!r}": (
            args.kv_cache_dtype != "auto",
            "keys and values are kept as the model computes them",
        ),
        f"tensor_parallel_size={args.tensor_parallel_size}": (
            args.tensor_parallel_size > 1,
            "sums over several parts round differently",
        ),
        f"pipeline_parallel_size={args.pipeline_parallel_size}": (
            args.pipeline_parallel_size > 1,
            "the model runs in one piece",
        ),
        "speculative_config": (
            args.speculative_config is not None,
            "several tokens at once round differently",
        ),
        "enable_lora=True": (args.enable_lora, "vLLM's adapters need vLLM's layers"),
        "enable_prompt_embeds=True": (args.enable_prompt_embeds, "it takes token ids"),
        f"distributed_executor_backend={args.distributed_executor_backend!r}": (
            args.distributed_executor_backend not in (None, "mp", "uni", _EXECUTOR),
            "the model runs in one process",
        ),
        "kv_transfer_config": (args.kv_transfer_config is not None, "it keeps its own KV cache"),
    }
    for argument, (is_given, reason) in reasons.items():
        if is_given:
            raise ValueError(
                f'hf_compat="exact" does not go with {argument}, since {reason}: leave it out, or '
                "use hf_compat=True."
            )
