"""Settings with which logits are not Hugging Face's to the last bit: strict refuses them.

Without strict the report names them (`vllm.hf_layers.report`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from vllm.fork.flags.fork_flags import ForkFlags
from vllm.fork.processes.cores import THREADS_BIND, chosen_threads
from vllm.hf_layers.definition.attn_implementation import attn_implementation
from vllm.hf_layers.engine.engine_args import PYTORCH_THREADS
from vllm.hf_layers.engine.exact_models import could_be_exact
from vllm.hf_layers.models import facts_of
from vllm.platforms import current_platform

if TYPE_CHECKING:
    from vllm.config import ModelConfig, VllmConfig

_KEY = "fork_inexact_settings"
"""Of ``VllmConfig.additional_config``."""


@dataclass(frozen=True)
class Setting:
    """A setting that costs Hugging Face's bits.

    Attributes:
        name: as it was given, or as it follows from what was.
        reason: why bits are others, without an end.
        remedy: what keeps them; nothing where another model would.
        has_exact: whether ``hf_compat="exact"`` goes with it.
    """

    name: str
    reason: str
    remedy: str = "leave it out"
    has_exact: bool = False

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


def inexact_settings(vllm_config: VllmConfig) -> list[Setting]:
    """Return what costs an engine with ``hf_compat=True`` Hugging Face's bits, if anything does."""
    of_layers = list(_of_all_layers(vllm_config))
    others = of_layers or [*_of_parts(vllm_config), *_of_steps(vllm_config)]
    return [*_of_cache(vllm_config), *others]


def _of_cache(vllm_config: VllmConfig) -> Iterator[Setting]:
    """Yield what changes tokens, and not only bits."""
    dtype = vllm_config.cache_config.cache_dtype
    if dtype != "auto":
        yield Setting(
            f"kv_cache_dtype={dtype!r}",
            "keys and values are rounded to it, and tokens are others than generate()'s",
        )


def _of_all_layers(vllm_config: VllmConfig) -> Iterator[Setting]:
    """Yield what leaves no other setting to decide."""
    flags, dtype = ForkFlags.of(vllm_config), vllm_config.model_config.dtype
    if flags.hf_compat == "rules":
        whose = "the definition of the model is vLLM's" + (
            "" if flags.is_portable else ", and so are its layers"
        )
        yield Setting('hf_compat="rules"', whose)
    if flags.is_portable:
        yield Setting("deterministic=True", "layers have the bits of its own specification")
    if dtype == torch.float32:
        yield Setting(
            "dtype float32",
            "layers are vLLM's, which rounds otherwise, so one answer in 1,000 has another token",
            'use dtype="bfloat16" or "float16"',
            has_exact=True,
        )
    if not current_platform.is_cpu():
        yield Setting(
            current_platform.device_name,
            "attention and products on GPUs are vLLM's kernels",
            "run on a CPU",
            has_exact=True,
        )


def _of_parts(vllm_config: VllmConfig) -> Iterator[Setting]:
    """Yield what changes how a product is taken apart."""
    if ForkFlags.of(vllm_config).split_qkv is False:
        yield Setting("split_qkv=False", "fused projections round otherwise than separate ones")
    if (implementation := attn_implementation(vllm_config.model_config)) not in (None, "sdpa"):
        yield Setting(
            f"attn_implementation={implementation!r} (hf_overrides, or config.json)",
            'the engine has the bits of "sdpa", which Transformers chooses by itself',
            has_exact=True,
        )
    parallel = vllm_config.parallel_config
    if parallel.tensor_parallel_size > 1:
        yield Setting(
            f"tensor_parallel_size={parallel.tensor_parallel_size}",
            "sums over several parts round differently",
        )
    if parallel.pipeline_parallel_size > 1:
        yield Setting(
            f"pipeline_parallel_size={parallel.pipeline_parallel_size}",
            "its ranks have vLLM's number of threads, on which a product's bits depend",
        )
    elif parallel.tensor_parallel_size == 1 and (
        parallel.distributed_executor_backend not in PYTORCH_THREADS
    ):
        yield Setting(
            f"distributed_executor_backend={parallel.distributed_executor_backend!r}",
            "it has vLLM's number of threads, on which a product's bits depend",
        )
    if (threads := chosen_threads()) is not None:
        yield Setting(
            f"{THREADS_BIND}={threads}",
            "it chooses the number of threads, on which a product's bits depend",
            "unset it",
            has_exact=True,
        )


def _of_steps(vllm_config: VllmConfig) -> Iterator[Setting]:
    """Yield what gives products other shapes than those of `generate()`."""
    cache, scheduler = vllm_config.cache_config, vllm_config.scheduler_config
    if vllm_config.speculative_config is not None:
        yield Setting("speculative_config", "several drafts at once round differently")
    if vllm_config.lora_config is not None:
        yield Setting("enable_lora=True", "adapters are computed by vLLM's kernels", has_exact=True)
    if vllm_config.model_config.quantization is not None:
        yield Setting(
            f"quantization={vllm_config.model_config.quantization!r}",
            "quantised layers keep vLLM's kernels",
            "use unquantised weights",
        )
    if cache.enable_prefix_caching:
        yield Setting("enable_prefix_caching=True", "a part of a prompt rounds differently")
    if scheduler.enable_chunked_prefill:
        budget, longest = scheduler.max_num_batched_tokens, vllm_config.model_config.max_model_len
        remedy = f"use max_num_batched_tokens={longest}" if budget < longest else "leave it out"
        yield Setting(
            f"enable_chunked_prefill=True (max_num_batched_tokens={budget})",
            "prompts that do not fit into a step are computed in chunks, which round differently",
            remedy,
        )


def settings_of(vllm_config: VllmConfig) -> tuple[str, ...]:
    """Return what costs an engine in hf_compat Hugging Face's bits, a sentence each without end."""
    return tuple(vllm_config.additional_config.get(_KEY, ()))


def note_settings(vllm_config: VllmConfig) -> None:
    """Keep what `settings_of` returns in the configuration of an engine in hf_compat, in place:
    its workers have other variables of the environment.

    Raises:
        ValueError: there is any, with ``hf_compat="strict"``, or the model is known to have layers
            that keep vLLM's bits; the sentence names the first, why, and what to do.
    """
    mode = ForkFlags.of(vllm_config).hf_compat
    settings = [] if mode == "exact" else inexact_settings(vllm_config)
    vllm_config.additional_config[_KEY] = list(map(str, settings))
    if mode != "strict":
        return
    for setting in [*settings, *_of_the_model(vllm_config.model_config)]:
        remedies = [setting.remedy] if setting.remedy else []
        if setting.has_exact and could_be_exact(vllm_config):
            remedies.append('use hf_compat="exact", which runs Transformers\' own model')
        remedies.append("use hf_compat=True, which promises less")
        raise ValueError(
            f'hf_compat="strict" does not go with {setting.name}, since {setting.reason}: '
            f"{', or '.join(remedies)}."
        )


def _of_the_model(config: ModelConfig) -> Iterator[Setting]:
    """Yield why a model cannot have Hugging Face's bits, as far as that is known before it is made.

    `check_layers` of the report finds all reasons, and finds them in another process, whose errors
    the caller has to look for in the log.
    """
    name, model_type = config.architecture, config.hf_text_config.model_type
    if config.use_mla:
        yield Setting(name, "its latent attention (MLA) keeps vLLM's kernel", "", True)
    if config.get_num_experts() and not facts_of(config.hf_text_config).mixture:
        yield Setting(name, f"the experts of {model_type} keep vLLM's kernel", "", True)
    if config.is_hybrid or config.is_attention_free:
        yield Setting(name, "layers without attention keep vLLM's kernels", "")
