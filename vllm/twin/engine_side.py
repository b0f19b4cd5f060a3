"""The logits that an engine gives a twin's texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from vllm.fork.flags.fork_flags import IS_TWIN, ForkFlags
from vllm.twin.setting import EngineSetting, Steps
from vllm.twin.texts import NEW_TOKENS

if TYPE_CHECKING:
    from vllm.v1.engine.llm_engine import LLMEngine
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

_KV_CACHE_BYTES = 256 << 20


@contextmanager
def engine(
    folder: Path, setting: EngineSetting, max_model_len: int, is_twin: bool = True
) -> Iterator[LLMEngine]:
    """Start an engine in this process, for a while.

    Args:
        folder: of the checkpoint.
        setting: of the engine, or of that which the twin is made for.
        max_model_len: tokens of the longest text with its answer.
        is_twin: whether it computes a twin, of which nothing is asked that an engine asks of a
            user's model.
    """
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.layers.rotary_embedding import _ROPE_DICT
    from vllm.v1.engine.llm_engine import LLMEngine

    _leave_classes_of_transformers()
    _ROPE_DICT.clear()  # kept by their own dtype, and rounded in place to that of their model
    flags = setting.flags
    args = EngineArgs(
        model=str(folder),
        dtype=setting.dtype,
        skip_tokenizer_init=True,
        tokenizer_mode="hf",  # an own one of a model asks for its tokenizer
        max_model_len=max_model_len,
        max_num_batched_tokens=1024,
        max_num_seqs=8,
        kv_cache_memory_bytes=_KV_CACHE_BYTES,
        enforce_eager=True,
        enable_prefix_caching=False,
        additional_config={IS_TWIN: True} if is_twin else {},
        hf_compat=flags.hf_compat,
        split_qkv=flags.split_qkv,
        deterministic=flags.deterministic,
        receipts=False,
        model_impl=setting.model_impl,
        trust_remote_code=setting.remote_code,
        hf_overrides={"attn_implementation": setting.attention} if setting.attention else {},
    )
    config = args.create_engine_config()
    config.parallel_config.distributed_executor_backend = "uni"
    started = LLMEngine(config, _executor(flags), log_stats=False)
    core: Any = started.engine_core
    core._finalizer.detach()  # a shutdown would end groups of the process, and takes longest
    yield started


def _leave_classes_of_transformers() -> None:
    """Keep vLLM's Transformers backend from changing, for compilation, the classes that it runs:
    they are the other side's, too.
    """
    from vllm.model_executor.models.transformers.base import Base

    Base._decorate_for_torch_compile = lambda *_, **__: None


def _executor(flags: ForkFlags) -> Any:
    from vllm.hf_layers.engine.executor import HFOneProcessExecutor
    from vllm.platforms import current_platform
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    return (
        HFOneProcessExecutor if flags.hf_compat and current_platform.is_cpu() else UniProcExecutor
    )


def runner_of(started: LLMEngine) -> GPUModelRunner:
    """Return the model runner of an engine in this process."""
    core: Any = started.engine_core
    runner: GPUModelRunner = core.engine_core.model_executor.driver_worker.worker.model_runner
    return runner


def answers(
    started: LLMEngine,
    texts: Sequence[Sequence[int]],
    num_tokens: int = NEW_TOKENS,
    repetition_penalty: float = 1.0,
) -> tuple[list[list[int]], list[Steps]]:
    """Return the likeliest tokens after each text, and their logits, all texts at once.

    Args:
        started: an engine in this process.
        texts: token ids.
        num_tokens: of each answer.
        repetition_penalty: see ``SamplingParams``.

    Returns:
        For each text: its next tokens, and logits [num_tokens, vocab_size].
    """
    from vllm.sampling_params import SamplingParams

    steps: dict[str, list[torch.Tensor]] = {}
    tokens: dict[str, list[int]] = {}
    with _kept_logits(runner_of(started), steps):
        for i, text in enumerate(texts):
            params = SamplingParams(
                temperature=0,
                repetition_penalty=repetition_penalty,
                max_tokens=num_tokens,
                ignore_eos=True,
                detokenize=False,
            )
            started.add_request(str(i), {"prompt_token_ids": list(text)}, params)
        while started.has_unfinished_requests():
            for output in started.step():
                tokens[output.request_id] = list(output.outputs[0].token_ids)
    names = [str(i) for i in range(len(texts))]
    return [tokens[name] for name in names], [torch.cat(steps[name]).cpu() for name in names]


@contextmanager
def _kept_logits(runner: GPUModelRunner, into: dict[str, list[torch.Tensor]]) -> Iterator[None]:
    """Keep a copy of what the model gives each request, [1, vocab_size] a step."""
    model: Any = runner.model
    compute = model.compute_logits

    def keep(*args: Any, **kwargs: Any) -> torch.Tensor:
        logits: torch.Tensor = compute(*args, **kwargs)
        for i, name in enumerate(runner.input_batch.req_ids):
            into.setdefault(name.split("-")[0], []).append(logits[i : i + 1].clone())
        return logits

    model.compute_logits = keep
    try:
        yield
    finally:
        del model.compute_logits
