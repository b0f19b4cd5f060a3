"""What deterministic mode asks of an engine, before its configuration is made."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch

from vllm.deterministic.latent_attention import attend_over_heads
from vllm.fork.flags.settled_warnings import leave_out_eager
from vllm.fork.startup.attention_backend import chosen_backends
from vllm.fork.startup.decode_graphs import run_uncompiled
from vllm.fork.startup.model_config import config_of, num_experts
from vllm.fork_kernels.portable.product import has_kernels
from vllm.hf_layers.engine.dtype import hf_dtype
from vllm.logger import init_logger
from vllm.platforms import current_platform
from vllm.v1.attention.backends.registry import AttentionBackendEnum

if TYPE_CHECKING:
    from vllm.config import CUDAGraphMode
    from vllm.engine.arg_utils import EngineArgs
    from vllm.fork.flags.fork_flags import ForkFlags

logger = init_logger(__name__)

_REPLACED = AttentionBackendEnum.TRITON_ATTN
_REPLACED_EXPERTS = "triton"
"""What vLLM makes on GPUs, to be replaced; arguments that were prepared have it already."""


def prepare_engine_args(args: EngineArgs, flags: ForkFlags) -> None:
    """Choose what the flag needs, in place; nothing without it.

    Raises:
        ValueError: an argument, the dtype or the platform does not go with the flag.
    """
    if flags.deterministic == "batch":
        _use_batch_invariance()
    elif flags.deterministic:
        _prepare_portable(args, flags)


def _use_batch_invariance() -> None:
    """Switch on upstream's kernels whose bits do not depend on the batch, for one GPU model."""
    if not current_platform.is_cuda():
        raise ValueError(
            'deterministic="batch" is upstream\'s batch-invariant mode, which needs an NVIDIA '
            "GPU: use deterministic=True here, which promises more."
        )
    os.environ["VLLM_BATCH_INVARIANT"] = "1"


def _prepare_portable(args: EngineArgs, flags: ForkFlags) -> None:
    _check_platform()
    for argument, (is_given, reason) in _excluded(args, flags).items():
        if is_given:
            raise ValueError(
                f"deterministic=True does not go with {argument}, since {reason}: leave it out."
            )
    config = config_of(args)
    if args.dtype == "auto":
        dtype = hf_dtype(args.model, args.revision, config)
        args.dtype = dtype if dtype is not None else args.dtype
    if args.dtype in ("float32", "float", torch.float32):
        raise ValueError(
            "deterministic=True multiplies with 15 bits of each number, fewer than float32 has: "
            'use dtype="bfloat16" or dtype="float16".'
        )
    args.mamba_ssm_cache_dtype = "float32"  # vLLM makes blocks that are large enough
    if args.speculative_config is not None:
        args.async_scheduling = False  # each position waits for the last one's token, on the host
    if current_platform.is_cuda():
        _choose_gpu_layers(args)
    _choose_execution(args)
    attend_over_heads(args)
    if flags.split_qkv is not None:
        logger.info("deterministic: split_qkv changes nothing, each row's bits are its own.")


def _choose_execution(args: EngineArgs) -> None:
    """Leave compiled code out, which rounds in its own order; on GPUs, decode with CUDA graphs.

    Raises:
        ValueError: graphs are asked for that are parts of compiled code.
    """
    if args.enforce_eager:
        return
    mode = args.compilation_config.cudagraph_mode
    if mode is not None and mode.requires_piecewise_compilation() and _has_graphs(args):
        raise ValueError(
            f"deterministic=True does not go with cudagraph_mode={mode.name}, whose graphs are "
            'pieces of compiled code: use "FULL_DECODE_ONLY" or "FULL".'
        )
    reason = _why_eager(args, mode)
    if reason is None:
        run_uncompiled(args)
        return
    logger.info("deterministic: enforce_eager, since %s.", reason)
    args.enforce_eager = True
    leave_out_eager()


def _why_eager(args: EngineArgs, mode: CUDAGraphMode | None) -> str | None:
    """Return why steps are no CUDA graphs; None if they are.

    Args:
        args: of an engine without enforce_eager.
        mode: of graphs that is asked for, if one is.
    """
    if not current_platform.is_cuda():
        return "compiled code rounds in its own order"
    if mode is not None:
        return None if mode else "cudagraph_mode is NONE"
    if int(args.optimization_level) == 0:
        return "the optimization level is 0"
    if args.enable_lora:
        return "a CUDA graph would keep the adapters of one step"
    if num_experts(config_of(args)):
        return "a CUDA graph would keep the experts of one step"
    return None


def _has_graphs(args: EngineArgs) -> bool:
    """Return whether it is asked for that steps are CUDA graphs."""
    asked = bool(args.compilation_config.cudagraph_mode)
    return asked and current_platform.is_cuda() and not args.enforce_eager


def _check_platform() -> None:
    """Refuse what there are no kernels for.

    Raises:
        ValueError: no device, another one than x86-64 CPUs and NVIDIA GPUs, or an old GPU.
        RuntimeError: the library was built without what the platform needs.
    """
    if current_platform.is_unspecified():
        raise ValueError(
            "deterministic=True: vLLM finds no device that this installation is for: on a machine "
            "without a GPU, install with VLLM_TARGET_DEVICE=cpu; on one with a GPU, see whether "
            "nvidia-smi finds it."
        )
    if not (current_platform.is_cpu() or current_platform.is_cuda()):
        raise ValueError(
            "deterministic=True runs on CPUs and on NVIDIA GPUs, and not on "
            f"{current_platform.device_name}: leave the flag out."
        )
    if current_platform.is_cuda() and not current_platform.has_device_capability(80):
        raise ValueError(
            "deterministic=True needs a GPU of compute capability 8.0 or later, for the products "
            "of integers: leave the flag out, or run on CPUs."
        )
    if not has_kernels(torch.device(current_platform.device_type)):
        raise RuntimeError(
            "deterministic=True: the compiled operators have no kernels for "
            f"{current_platform.device_name}. Install the distribution with "
            f"VLLM_TARGET_DEVICE={current_platform.device_type}."
        )


def _choose_gpu_layers(args: EngineArgs) -> None:
    """Let vLLM make layers of Triton, which tell their numbers before they are replaced."""
    args.attention_backend = _REPLACED
    args.moe_backend = _REPLACED_EXPERTS


def _excluded(args: EngineArgs, flags: ForkFlags) -> dict[str, tuple[object, str]]:
    """Return whether each argument is given that this mode does not have, and why it has not."""
    return {
        'hf_compat="exact"': (
            flags.hf_compat == "exact",
            "one promises the same bits everywhere and the other those of this machine's PyTorch "
            "(hf_compat=True goes with deterministic=True)",
        ),
        f"quantization={args.quantization!r}": (
            args.quantization is not None,
            "quantised weights are not specified",
        ),
        f"kv_cache_dtype={args.kv_cache_dtype!r}": (
            args.kv_cache_dtype != "auto",
            "keys and values are kept as integers of 16 bits",
        ),
        f"mamba_cache_dtype={args.mamba_cache_dtype!r}": (
            args.mamba_cache_dtype != "auto",
            "the last inputs of convolutions are kept in the model's dtype",
        ),
        f"mamba_ssm_cache_dtype={args.mamba_ssm_cache_dtype!r}": (
            args.mamba_ssm_cache_dtype not in ("auto", "float32"),
            "states of recurrences are kept in float32",
        ),
        "use_replayssm=True": (args.use_replayssm, "states are kept, and not inputs"),
        f"pipeline_parallel_size={args.pipeline_parallel_size}": (
            args.pipeline_parallel_size > 1,
            "it is not tested",
        ),
        "enable_expert_parallel=True": (args.enable_expert_parallel, "it is not specified"),
        "enable_lora=True and cudagraph_mode": (
            args.enable_lora and _has_graphs(args),
            "a graph would keep the adapters of one step",
        ),
        "fully_sharded_loras=True": (args.fully_sharded_loras, "it splits adapters' ranks"),
        "an attention backend": (
            chosen_backends(args) - {_REPLACED},
            "it has its own",
        ),
        f"moe_backend={args.moe_backend!r}": (
            args.moe_backend not in ("auto", _REPLACED_EXPERTS),
            "it has its own",
        ),
        "kv_transfer_config": (
            args.kv_transfer_config is not None,
            "it expects another KV cache",
        ),
    }
