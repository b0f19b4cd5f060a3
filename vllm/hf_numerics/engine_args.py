"""What ``hf_compat="exact"`` asks of an engine, before its configuration is made."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.engine.arg_utils import EngineArgs
    from vllm.fork.flags import ForkFlags

LOAD_FORMAT = "hf_exact"
"""Name of `loader.ExactLoader` among vLLM's model loaders."""


def prepare_engine_args(args: EngineArgs, flags: ForkFlags) -> None:
    """Choose what exact mode needs, in place; no-op in other modes.

    Raises:
        ValueError: the arguments ask for something that changes bits or that the mode has not.
    """
    if flags.hf_compat != "exact":
        return
    _refuse(args)
    args.load_format = LOAD_FORMAT
    args.enforce_eager = True
    args.enable_prefix_caching = False
    args.enable_chunked_prefill = False
    args.async_scheduling = False  # tokens are read from the host


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
        "kv_transfer_config": (args.kv_transfer_config is not None, "it keeps its own KV cache"),
    }
    for argument, (is_given, reason) in reasons.items():
        if is_given:
            raise ValueError(
                f'hf_compat="exact" does not go with {argument}, since {reason}: leave it out, or '
                "use hf_compat=True."
            )
