"""The settings with which logits are not Hugging Face's to the last bit: a table of them.

`vllm.hf_layers.strict` refuses them, the report names them, and ``tools.inexact_settings`` writes
them into ``docs/flags.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from vllm.fork.flags.fork_flags import ForkFlags
from vllm.fork.processes.cores import THREADS_BIND, chosen_threads
from vllm.hf_layers.definition.attn_implementation import attn_implementation
from vllm.hf_layers.engine.engine_args import PYTORCH_THREADS
from vllm.hf_layers.models import facts_of
from vllm.platforms import current_platform

if TYPE_CHECKING:
    from vllm.config import VllmConfig


class Engine:
    """What the table asks of an engine with ``hf_compat=True``, by short names.

    Args:
        vllm_config: of the engine.
    """

    def __init__(self, vllm_config: VllmConfig) -> None:
        parallel = vllm_config.parallel_config
        self.config = vllm_config
        self.flags = ForkFlags.of(vllm_config)
        self.model = vllm_config.model_config
        self.ranks = parallel.tensor_parallel_size
        self.stages = parallel.pipeline_parallel_size
        self.executor = parallel.distributed_executor_backend
        self.cache_dtype = vllm_config.cache_config.cache_dtype
        self.budget = vllm_config.scheduler_config.max_num_batched_tokens
        self.max_model_len = self.model.max_model_len
        self.method = self.model.quantization
        self.threads = chosen_threads()

    @property
    def device(self) -> str:
        """The name of its GPU."""
        return current_platform.device_name

    @property
    def attention(self) -> str | None:
        """Which of Transformers' implementations is asked for."""
        return attn_implementation(self.model)

    @property
    def architecture(self) -> str:
        """The name of the model's class."""
        return self.model.architecture

    @property
    def model_type(self) -> str:
        """That of Transformers."""
        return self.model.hf_text_config.model_type

    @property
    def has_other_threads(self) -> bool:
        """Whether a single rank runs in an executor with vLLM's number of threads."""
        return self.ranks == self.stages == 1 and self.executor not in PYTORCH_THREADS

    @property
    def has_chunks(self) -> bool:
        """Whether prompts may be computed in parts."""
        return self.config.scheduler_config.enable_chunked_prefill

    @property
    def has_unknown_experts(self) -> bool:
        """Whether Transformers' modules do not take the place of its experts."""
        return bool(
            self.model.get_num_experts() and not facts_of(self.model.hf_text_config).mixture
        )


@dataclass(frozen=True)
class Setting:
    """A setting that costs Hugging Face's bits. ``{0...}`` in its texts is of an `Engine`.

    Attributes:
        name: as it was given, or as it follows from what was.
        reason: why bits are others, without an end.
        is_set: whether an engine has it.
        remedy: what keeps the bits; nothing where another model would.
        has_exact: whether ``hf_compat="exact"`` goes with it.
        title: in the documentation, as Markdown, where the name alone says too little.
    """

    name: str
    reason: str
    is_set: Callable[[Engine], bool]
    remedy: str = "leave it out"
    has_exact: bool = False
    title: str = ""

    def of(self, engine: Engine) -> Setting:
        """Return the same, with the texts of an engine."""
        name, reason, remedy = (
            text.format(engine) for text in (self.name, self.reason, self.remedy)
        )
        return replace(self, name=name, reason=reason, remedy=remedy)

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


OF_CACHE = (
    Setting(
        "kv_cache_dtype={0.cache_dtype!r}",
        "keys and values are rounded to it, and tokens are others than generate()'s",
        lambda engine: engine.cache_dtype != "auto",
    ),
)
"""What changes tokens, and not only bits."""

OF_ALL_LAYERS = (
    Setting(
        'hf_compat="rules"',
        "the definition of the model is vLLM's, and so are its layers",
        lambda engine: engine.flags.hf_compat == "rules" and not engine.flags.is_portable,
    ),
    Setting(
        'hf_compat="rules"',
        "the definition of the model is vLLM's",
        lambda engine: engine.flags.hf_compat == "rules" and engine.flags.is_portable,
        title='`hf_compat="rules"` with `deterministic=True`',
    ),
    Setting(
        "deterministic=True",
        "layers have the bits of its own specification",
        lambda engine: engine.flags.is_portable,
    ),
    Setting(
        "dtype float32",
        "layers are vLLM's, which rounds otherwise, so one answer in 1,000 has another token",
        lambda engine: engine.model.dtype == torch.float32,
        'use dtype="bfloat16" or "float16"',
        has_exact=True,
        title='`dtype="float32"`',
    ),
    Setting(
        "{0.device}",
        "attention and products on GPUs are vLLM's kernels",
        lambda engine: not current_platform.is_cpu(),
        "run on a CPU",
        has_exact=True,
        title="a GPU",
    ),
)
"""What leaves no setting of a single product or step to decide."""

OF_PRODUCTS = (
    Setting(
        "split_qkv=False",
        "fused projections round otherwise than separate ones",
        lambda engine: engine.flags.split_qkv is False,
    ),
    Setting(
        "attn_implementation={0.attention!r} (hf_overrides, or config.json)",
        'the engine has the bits of "sdpa", which Transformers chooses by itself',
        lambda engine: engine.attention not in (None, "sdpa"),
        has_exact=True,
    ),
    Setting(
        "tensor_parallel_size={0.ranks}",
        "sums over several parts round differently",
        lambda engine: engine.ranks > 1,
    ),
    Setting(
        "pipeline_parallel_size={0.stages}",
        "its ranks have vLLM's number of threads, on which a product's bits depend",
        lambda engine: engine.stages > 1,
    ),
    Setting(
        "distributed_executor_backend={0.executor!r}",
        "it has vLLM's number of threads, on which a product's bits depend",
        lambda engine: engine.has_other_threads,
    ),
    Setting(
        f"{THREADS_BIND}={{0.threads}}",
        "it chooses the number of threads, on which a product's bits depend",
        lambda engine: engine.threads is not None,
        "unset it",
        has_exact=True,
    ),
)
"""What changes how a product is taken apart."""

OF_STEPS = (
    Setting(
        "speculative_config",
        "several drafts at once round differently",
        lambda engine: engine.config.speculative_config is not None,
    ),
    Setting(
        "enable_lora=True",
        "adapters are computed by vLLM's kernels",
        lambda engine: engine.config.lora_config is not None,
        has_exact=True,
    ),
    Setting(
        "quantization={0.method!r}",
        "quantised layers keep vLLM's kernels",
        lambda engine: engine.method is not None,
        "use unquantised weights",
    ),
    Setting(
        "enable_prefix_caching=True",
        "a part of a prompt rounds differently",
        lambda engine: engine.config.cache_config.enable_prefix_caching,
    ),
    Setting(
        "enable_chunked_prefill=True (max_num_batched_tokens={0.budget})",
        "prompts that do not fit into a step are computed in chunks, which round differently",
        lambda engine: engine.has_chunks and engine.budget < engine.max_model_len,
        "use max_num_batched_tokens={0.max_model_len}",
    ),
    Setting(
        "enable_chunked_prefill=True (max_num_batched_tokens={0.budget})",
        "prompts that do not fit into a step are computed in chunks, which round differently",
        lambda engine: engine.has_chunks and engine.budget >= engine.max_model_len,
        title="`enable_chunked_prefill=True`",
    ),
)
"""What gives products other shapes than those of `generate()`."""

OF_MODELS = (
    Setting(
        "{0.architecture}",
        "its latent attention (MLA) keeps vLLM's kernel",
        lambda engine: engine.model.use_mla,
        "",
        has_exact=True,
        title="a model with latent attention",
    ),
    Setting(
        "{0.architecture}",
        "the experts of {0.model_type} keep vLLM's kernel",
        lambda engine: engine.has_unknown_experts,
        "",
        has_exact=True,
        title="experts that no module of Transformers computes",
    ),
    Setting(
        "{0.architecture}",
        "layers without attention keep vLLM's kernels",
        lambda engine: engine.model.is_hybrid or engine.model.is_attention_free,
        "",
        has_exact=True,
        title="a hybrid model, or one without attention",
    ),
)
"""What is known of a model before it is made; the report finds all of its layers."""


SETTINGS = OF_CACHE + OF_ALL_LAYERS + OF_PRODUCTS + OF_STEPS + OF_MODELS


def inexact_settings(vllm_config: VllmConfig) -> list[Setting]:
    """Return what costs an engine with ``hf_compat=True`` Hugging Face's bits, if anything does."""
    engine = Engine(vllm_config)
    others = list(_set(OF_ALL_LAYERS, engine)) or _set(OF_PRODUCTS + OF_STEPS, engine)
    return [*_set(OF_CACHE, engine), *others]


def inexact_models(vllm_config: VllmConfig) -> list[Setting]:
    """Return why an engine's model cannot have Hugging Face's bits, as far as that is known.

    `check_layers` of the report finds all reasons, and finds them in another process, whose errors
    the caller has to look for in the log.
    """
    return list(_set(OF_MODELS, Engine(vllm_config)))


def _set(table: tuple[Setting, ...], engine: Engine) -> Iterator[Setting]:
    return (setting.of(engine) for setting in table if setting.is_set(engine))
