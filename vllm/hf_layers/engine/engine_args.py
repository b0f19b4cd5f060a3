"""What hf_compat's numerics and split_qkv ask of an engine, before its configuration is made."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

import vllm.envs as envs
from vllm.fork.flags.settled_warnings import leave_out, leave_out_eager
from vllm.fork.processes import one_process
from vllm.fork.startup.decode_graphs import run_uncompiled
from vllm.fork.startup.model_config import config_of
from vllm.hf_layers.engine.dtype import hf_dtype
from vllm.hf_layers.engine.exact_models import check_exact
from vllm.hf_layers.engine.longrope import check_length_with_longrope
from vllm.hf_layers.engine.tensor_parallel import check_tensor_parallel_size
from vllm.hf_layers.engine.unlike_models import check_window
from vllm.hf_layers.models import facts_of
from vllm.logger import init_logger
from vllm.platforms import current_platform

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from vllm.engine.arg_utils import EngineArgs
    from vllm.fork.flags.fork_flags import ForkFlags

logger = init_logger(__name__)

LOAD_FORMAT = "hf_exact"
"""Name of `loader.ExactLoader` among vLLM's model loaders."""

EXECUTOR = "vllm.hf_layers.engine.executor.HFExecutor"
"""Name of `executor.HFExecutor` for ``distributed_executor_backend``."""

ONE_PROCESS = "vllm.hf_layers.engine.executor.HFOneProcessExecutor"
"""Name of `executor.HFOneProcessExecutor`."""

PYTORCH_THREADS = (EXECUTOR, ONE_PROCESS)
"""The executors whose model has as many threads as PyTorch has by default."""


def prepare_engine_args(args: EngineArgs, flags: ForkFlags) -> None:
    """Choose the dtype and the mode of execution that Hugging Face has, in place.

    Nothing changes without the flags.

    Raises:
        ValueError: see `check_tensor_parallel_size`, `check_length_with_longrope`, `check_window`
            and `check_exact`, or exact mode does not go with an argument.
    """
    if flags.hf_compat == "exact":
        _prepare_exact(args, flags)
    if flags.splits_projections and args.tensor_parallel_size > 1:
        check_tensor_parallel_size(args.tensor_parallel_size, config_of(args).get_text_config())
    if not (flags.hf_compat or flags.has_hf_definition):
        return
    config = config_of(args)
    if flags.hf_compat and args.dtype == "auto":
        args.dtype = hf_dtype(args.model, args.revision, config) or args.dtype
    if not flags.has_hf_definition:
        return
    check_window(config.get_text_config(), flags.as_given)
    if flags.hf_compat == "exact":
        check_exact(config)
    else:
        _use_published_name(args, config)
        check_length_with_longrope(args, config.get_text_config(), flags.as_given)
    if flags.is_portable:
        return  # layers of its own
    if args.tensor_parallel_size > 1:
        _say_that_sums_are_split(args)
    if args.load_format != LOAD_FORMAT and args.dtype in ("float32", torch.float32):
        return  # vLLM's own layers: all that differs is the last bits
    if current_platform.is_cpu():
        _use_hf_threads(args)
        _keep_prompts_whole(args)
    if not args.enforce_eager:
        _leave_compiled_code_out(args)


def _use_published_name(args: EngineArgs, config: PreTrainedConfig) -> None:
    """Let vLLM find its class of a model that Transformers has saved: see `ModelFacts.renamed`."""
    names = config.architectures or []
    found = [facts_of(config).renamed.get(one, one) for one in names]
    if found != names and isinstance(args.hf_overrides, dict):
        args.hf_overrides = {**args.hf_overrides, "architectures": found}


def _say_that_sums_are_split(args: EngineArgs) -> None:
    logger.warning(
        "hf_compat: with tensor_parallel_size=%d ranks add their parts of a product, which rounds "
        "differently: last bits of logits, and in 16 bits some answers, are not Hugging Face's. "
        "deterministic=True has the bits of one rank.",
        args.tensor_parallel_size,
    )


def _leave_compiled_code_out(args: EngineArgs) -> None:
    """Run the code as it is written, for compiled code does not round where HF does; on GPUs with
    CUDA graphs. A mode of compilation or of graphs that is asked for is kept, with a warning if
    code is compiled for it.
    """
    if current_platform.is_cpu():
        logger.info("hf_compat: enforce_eager, since compiled code does not round where HF does.")
        args.enforce_eager = True
        leave_out_eager()
        return
    mode, graphs = args.compilation_config.mode, args.compilation_config.cudagraph_mode
    if mode or (graphs is not None and graphs.requires_piecewise_compilation()):
        logger.warning(
            "hf_compat: the compilation_config asks for compiled code, which does not round where "
            "HF does: leave its mode and cudagraph_mode out for HF's roundings."
        )
        return
    run_uncompiled(args)
    logger.info("hf_compat: code is not compiled, since that does not round where HF does.")


def _keep_prompts_whole(args: EngineArgs) -> None:
    """Switch off what splits prompts, as far as nothing is asked for: products of a part of a
    prompt round differently from those of the whole.
    """
    if args.enable_prefix_caching is None:
        args.enable_prefix_caching = False
    budget, longest = args.max_num_batched_tokens, args.max_model_len
    if args.enable_chunked_prefill is None and (
        budget is None or (longest is not None and budget >= longest)
    ):
        args.enable_chunked_prefill = False
        _say_nothing_of_chunks()
    if not (args.enable_prefix_caching or args.enable_chunked_prefill):
        logger.info("hf_compat: prompts are computed whole, neither in chunks nor from a cache.")


def _say_nothing_of_chunks() -> None:
    leave_out("vllm.engine.arg_utils", "This model does not officially support disabling chunked")


def _use_hf_threads(args: EngineArgs) -> None:
    """Choose the executor with as many threads as Transformers would have, since bits depend on
    them; say so where it cannot be, for there are several ranks, or workers of another kind.
    """
    backend = args.distributed_executor_backend
    if args.tensor_parallel_size > 1:
        cause = f"tensor_parallel_size={args.tensor_parallel_size}"
    elif args.pipeline_parallel_size > 1:
        cause = f"pipeline_parallel_size={args.pipeline_parallel_size}"
    elif backend in PYTORCH_THREADS:
        return
    elif backend == one_process.EXECUTOR:
        args.distributed_executor_backend = ONE_PROCESS
        return
    elif backend in (None, "mp", "uni"):
        args.distributed_executor_backend = EXECUTOR
        return
    else:
        cause = f"distributed_executor_backend={backend!r}"
    logger.warning(
        "hf_compat: with %s workers have vLLM's number of threads and not PyTorch's, on which the "
        "bits of products depend: logits may differ from Hugging Face's in their last bits.",
        cause,
    )


def _prepare_exact(args: EngineArgs, flags: ForkFlags) -> None:
    """Choose what exact mode needs: prompts are computed whole, and tokens read from the host."""
    for argument, (is_given, reason) in excluded_by_exact(args, flags).items():
        if is_given:
            raise ValueError(
                f'hf_compat="exact" does not go with {argument}, since {reason}: leave it out, or '
                "use hf_compat=True."
            )
    args.load_format = LOAD_FORMAT
    args.enforce_eager = True
    leave_out_eager()
    args.enable_prefix_caching = False
    args.enable_chunked_prefill = False
    _say_nothing_of_chunks()
    args.async_scheduling = False


_OF_STATES = (
    "mamba_cache_dtype",
    "mamba_ssm_cache_dtype",
    "mamba_block_size",
    "mamba_cache_mode",
)
"""Arguments on the states of vLLM's own kernels."""


def excluded_by_exact(args: EngineArgs, flags: ForkFlags) -> dict[str, tuple[bool | None, str]]:
    """Return whether each argument is given that changes bits or that exact mode has not, and why
    it is excluded.
    """
    return {
        "enable_prefix_caching=True": (args.enable_prefix_caching, "prompts are computed whole"),
        "enable_chunked_prefill=True": (args.enable_chunked_prefill, "prompts are computed whole"),
        "split_qkv=False": (flags.split_qkv is False, "projections are Transformers' own"),
        f"load_format={args.load_format!r}": (
            args.load_format not in ("auto", "hf", "safetensors", LOAD_FORMAT),
            "Transformers loads the model",
        ),
        f"model_loader_extra_config={args.model_loader_extra_config!r}": (
            bool(args.model_loader_extra_config),
            "Transformers loads the model",
        ),
        f"quantization={args.quantization!r}": (
            args.quantization is not None,
            "Transformers reads the quantization from the model's configuration",
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
        "enable_prompt_embeds=True": (args.enable_prompt_embeds, "it takes token ids"),
        f"distributed_executor_backend={args.distributed_executor_backend!r}": (
            args.distributed_executor_backend
            not in (None, "mp", "uni", one_process.EXECUTOR, *PYTORCH_THREADS),
            "the model runs in one process",
        ),
        "enable_return_routed_experts=True": (
            args.aux_output_config.enable_return_routed_experts,
            "experts are Transformers', which do not say what was sent to them",
        ),
        f"cpu_offload_gb={args.cpu_offload_gb}": (
            args.cpu_offload_gb > 0,
            "Transformers keeps all weights on one device",
        ),
        **_excluded_of_cache(args),
        "VLLM_BATCH_INVARIANT=1": (
            envs.VLLM_BATCH_INVARIANT,
            "that puts other products into PyTorch's place",
        ),
    }


def _excluded_of_cache(args: EngineArgs) -> dict[str, tuple[bool | None, str]]:
    """Return the arguments on what is kept between steps (`excluded_by_exact`)."""
    return {
        f"kv_cache_dtype={args.kv_cache_dtype!r}": (
            args.kv_cache_dtype != "auto",
            "keys and values are kept as the model computes them",
        ),
        "kv_transfer_config": (args.kv_transfer_config is not None, "it keeps its own KV cache"),
        "kv_offloading_size": (args.kv_offloading_size is not None, "it keeps its own KV cache"),
        "disable_hybrid_kv_cache_manager=True": (
            args.disable_hybrid_kv_cache_manager,
            "states have blocks of their own kind",
        ),
        **{
            f"{name}={getattr(args, name)!r}": (
                getattr(args, name) != getattr(type(args), name),
                "states are kept as the model computes them",
            )
            for name in _OF_STATES
        },
    }
