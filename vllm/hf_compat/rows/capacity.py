"""Which requests of several rows an engine can run; others are refused before they reach it."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from vllm.exceptions import VLLMValidationError
from vllm.fork.flags.fork_flags import ForkFlags
from vllm.hf_compat.call.request import HFRequest
from vllm.hf_layers.definition.configuration import config_of
from vllm.hf_layers.engine.exact_models import is_forgotten_by_guidance, num_state_blocks
from vllm.sampling_params import RequestOutputKind, SamplingParams

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig

    from vllm.config import VllmConfig

_NOT_WITH_BEAMS = ("logprobs", "prompt_logprobs", "structured_outputs", "stop", "stop_token_ids")
_PENALTIES = ("presence_penalty", "frequency_penalty")
"""vLLM's own, which its sampler applies; searches do not come there."""


def check_beams(
    request: HFRequest, params: SamplingParams, prompt_embeds: torch.Tensor | None
) -> None:
    """Refuse a search that asks for what beams do not have.

    Args:
        request: the search.
        params: its other parameters.
        prompt_embeds: of a prompt that is given as embeddings.

    Raises:
        VLLMValidationError: names it.
    """
    asked_for = {name: getattr(params, name) not in (None, []) for name in _NOT_WITH_BEAMS}
    asked_for |= {name: getattr(params, name) != 0.0 for name in _PENALTIES}
    asked_for |= {"as_batch": request.num_rows > 1, "prompt_embeds": prompt_embeds is not None}
    for name, is_asked_for in asked_for.items():
        if is_asked_for:
            raise VLLMValidationError(
                f"{name} is not available with num_beams={request.num_beams}: leave one of them "
                "out."
            )
    if params.output_kind == RequestOutputKind.DELTA:
        raise VLLMValidationError(
            "Beams are not streamed, since none is final before all are (generate() refuses a "
            "streamer too): leave stream or num_beams out."
        )


def check_guidance(request: HFRequest, prompt_embeds: torch.Tensor | None, vocab_size: int) -> None:
    """Refuse guidance that cannot be followed.

    Args:
        request: with ``guidance_scale``.
        prompt_embeds: of a prompt that is given as embeddings.
        vocab_size: of the model.

    Raises:
        VLLMValidationError: names the reason.
    """
    if request.num_beams > 1 or prompt_embeds is not None:
        other = "prompt_embeds" if prompt_embeds is not None else f"num_beams={request.num_beams}"
        raise VLLMValidationError(
            f"guidance_scale is not available with {other}: leave one of them out."
        )
    for token_id in request.negative_prompt_ids or []:
        if not 0 <= token_id < vocab_size:
            raise VLLMValidationError(
                f"negative_prompt_ids names token {token_id}, but the model's tokens are 0 to "
                f"{vocab_size - 1}."
            )


class Room:
    """The room in an engine.

    Args:
        vllm_config: of the engine; the number of KV blocks is read when a request comes. None has
            room for everything.
    """

    def __init__(self, vllm_config: VllmConfig | None = None) -> None:
        self._config = vllm_config

    def check(self, request: HFRequest) -> None:
        """Refuse a request of several rows that the engine can never run.

        Raises:
            VLLMValidationError: names what is missing.
        """
        if self._config is None:
            return
        rows = "guidance_scale" if request.is_guided else f"num_beams={request.num_beams}"
        model = self._config.model_config
        if not self._is_exact and (model.is_hybrid or model.is_attention_free):
            portable = ForkFlags.of(self._config).is_portable
            raise VLLMValidationError(
                f"{rows} is not available with layers of vLLM's that keep states, which are not in "
                f'blocks: use hf_compat="exact"{" without deterministic=True" * portable}, which '
                "has them there."
            )
        if (obstacle := self._obstacle(self._config)) is not None:
            raise VLLMValidationError(
                f"{rows} is not available with {obstacle}: leave one of them out."
            )
        seats = self._config.scheduler_config.max_num_seqs
        if request.num_batch_rows > seats:
            raise VLLMValidationError(
                f"{rows} needs {request.num_batch_rows} places in the batch, and there are "
                f"{seats}: raise max_num_seqs."
            )
        if request.is_guided:
            self._check_guide(request, self._config)
        cache = self._config.cache_config
        needed = _num_blocks(request, cache.block_size)
        needed += request.num_batch_rows * self._num_state_blocks
        if cache.num_gpu_blocks is not None and needed >= cache.num_gpu_blocks:
            raise VLLMValidationError(
                f"{rows} over {request.max_length} tokens may need {needed} KV cache blocks, "
                f"and there are {cache.num_gpu_blocks - 1}: raise gpu_memory_utilization or "
                "kv_cache_memory_bytes, or lower max_new_tokens."
            )

    @property
    def _is_exact(self) -> bool:
        return self._config is not None and ForkFlags.of(self._config).hf_compat == "exact"

    @cached_property
    def _exact_config(self) -> PreTrainedConfig | None:
        """The configuration of the model of Transformers that the engine runs, if it runs one."""
        if self._config is None or not self._is_exact:
            return None
        return config_of(self._config.model_config)

    @cached_property
    def _num_state_blocks(self) -> int:
        """The blocks that the states of a row take, besides those of its tokens."""
        return num_state_blocks(self._exact_config) if self._exact_config is not None else 0

    def _check_guide(self, request: HFRequest, config: VllmConfig) -> None:
        """The negative prompt comes in at once, after a preemption with the answer so far."""
        if self._exact_config is not None and is_forgotten_by_guidance(self._exact_config):
            raise VLLMValidationError(
                f"guidance_scale is not available with {config.model_config.architecture}, since "
                "generate() keeps nothing of the negative prompt for a model without "
                "past_key_values: leave it out."
            )
        most = config.scheduler_config.max_num_batched_tokens - 2
        needed = len(request.negative_prompt_ids or [0]) + request.max_length - request.prompt_len
        if needed >= most:
            raise VLLMValidationError(
                f"The negative prompt and max_new_tokens are {needed} tokens, and must be fewer "
                f"than {most}: raise max_num_batched_tokens."
            )
        if needed > config.model_config.max_model_len:
            raise VLLMValidationError(
                f"The negative prompt and max_new_tokens are {needed} tokens, more than "
                f"max_model_len={config.model_config.max_model_len}: raise it, or shorten one."
            )

    @staticmethod
    def _obstacle(config: VllmConfig) -> str | None:
        """Return what the engine has that keeps the KV cache of a request from being forked."""
        parallel = config.parallel_config
        obstacles = {
            "pipeline parallelism": parallel.pipeline_parallel_size > 1,
            "context parallelism": parallel.decode_context_parallel_size > 1,
            "a KV connector": config.kv_transfer_config is not None,
            "speculative decoding": config.speculative_config is not None,
        }
        return next((name for name, is_there in obstacles.items() if is_there), None)


def _num_blocks(request: HFRequest, block_size: int) -> int:
    """Return how many blocks a request may hold: beams share full ones of the prompt."""
    if request.is_guided:
        guide = len(request.negative_prompt_ids or [0]) + request.max_length - request.prompt_len
        return -(-request.max_length // block_size) + -(-guide // block_size)
    shared = request.prompt_len // block_size
    return shared + request.num_beams * (-(-request.max_length // block_size) - shared)
