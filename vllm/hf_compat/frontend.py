"""The edge where requests enter: HF's defaults, lengths, stopping rule and checks.

One `Frontend` belongs to vLLM's ``InputProcessor``, which every request passes, offline or over
HTTP. It sees a request twice: as the caller's parameters (`to_sampling_params`, `check`) and,
once the prompt is tokenised, as the engine's own copy (`finish`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from transformers import GenerationConfig, PretrainedConfig

from vllm.exceptions import VLLMValidationError
from vllm.fork.flags import ForkFlags
from vllm.hf_compat.check import ProcessorCheck
from vllm.hf_compat.generation_config import (
    eos_token_ids,
    load_generation_config,
    max_new_tokens,
    merge_generation_config,
)
from vllm.hf_compat.request import HFRequest
from vllm.hf_compat.sampling_params import SAMPLING_EPS, from_sampling_params, turn_off_processors
from vllm.hf_compat.support import check_fields, check_request, step_fields
from vllm.sampling_params import BeamSearchParams, SamplingParams

if TYPE_CHECKING:
    from vllm.config import VllmConfig


class HFSamplingParams(SamplingParams, kw_only=True):  # type: ignore[call-arg]
    """A ``SamplingParams`` made from a ``GenerationConfig``, which it keeps until the prompt is
    known: HF's ``max_length`` counts the prompt.

    Only the accepting process sees the subclass; `Frontend.finish` writes everything that the
    engine needs into ordinary fields.
    """

    _generation_config: Any = None
    _length_is_default: bool = True


def frontend_for(vllm_config: VllmConfig) -> Frontend | None:
    """Return the engine's `Frontend`, or None if hf_compat is off."""
    if not ForkFlags.of(vllm_config).hf_compat:
        return None
    model_config = vllm_config.model_config
    return Frontend(
        load_generation_config(model_config),
        model_config.hf_config,
        max_model_len=model_config.max_model_len,
        vocab_size=model_config.get_vocab_size(),
    )


def accept_params(frontend: Frontend | None, params: Any) -> Any:
    """Turn every ``GenerationConfig`` in `params` (one or a sequence) into ``SamplingParams``.

    Raises:
        VLLMValidationError: a ``GenerationConfig`` without hf_compat, or one that `Frontend`
            refuses.
    """
    if isinstance(params, Sequence):
        return [accept_params(frontend, item) for item in params]
    if not isinstance(params, GenerationConfig):
        return params
    if frontend is None:
        raise VLLMValidationError(
            "A transformers GenerationConfig needs hf_compat: pass LLM(..., hf_compat=True), or "
            "use vllm.SamplingParams."
        )
    return frontend.to_sampling_params(params)


class Frontend:
    """Resolves requests as `generate()` would for one model.

    Args:
        of_model: the model's ``generation_config``.
        model_config: Transformers' configuration of the model.
        max_model_len: the engine's limit of prompt and answer together, in tokens.
        vocab_size: width of the logits.
    """

    def __init__(
        self,
        of_model: GenerationConfig,
        model_config: PretrainedConfig,
        *,
        max_model_len: int,
        vocab_size: int,
    ) -> None:
        self.of_model = of_model
        self.max_model_len = max_model_len
        self.max_position_embeddings: int | None = getattr(
            model_config, "max_position_embeddings", None
        )
        self._check_processors = ProcessorCheck(model_config, vocab_size)

    def to_sampling_params(self, given: GenerationConfig | None = None) -> SamplingParams:
        """Resolve a ``GenerationConfig`` against the model's, as `generate()` does.

        Args:
            given: the caller's configuration; None for `generate()` without arguments.

        Raises:
            VLLMValidationError: it asks for something that this release does not reproduce.
        """
        merged = merge_generation_config(given, self.of_model)
        check_request(merged)
        params = HFSamplingParams(
            temperature=0.0,
            max_tokens=merged.max_new_tokens,
            seed=getattr(merged, "seed", None),
        )
        params._generation_config = merged
        params._length_is_default = self.of_model.max_length is None and (
            given is None or given.max_length is None
        )
        return params

    def check(self, params: SamplingParams | BeamSearchParams) -> None:
        """Refuse what hf_compat would have to answer differently from HF.

        Raises:
            VLLMValidationError: beam search, or several answers to one prompt.
        """
        if isinstance(params, BeamSearchParams):
            raise VLLMValidationError(
                "hf_compat does not reproduce Hugging Face's beam search yet, and vLLM's own "
                "gives other beams: run this request without hf_compat."
            )
        if params.n > 1 and params.temperature >= SAMPLING_EPS:
            raise VLLMValidationError(
                f"hf_compat does not reproduce num_return_sequences={params.n} yet: send the "
                "prompt several times with seeds of their own, or run it without hf_compat."
            )

    def finish(self, params: SamplingParams, prompt_len: int) -> None:
        """Write HF's rules into the engine's own copy of a request's parameters, in place.

        Args:
            params: the copy that goes to the engine.
            prompt_len: number of prompt tokens.

        Raises:
            VLLMValidationError: the length does not fit, in HF's sense or into the engine's
                context window.
        """
        if isinstance(params, HFSamplingParams):
            config = params._generation_config
            self._limit_length(params, config, prompt_len)
            params._generation_config = None  # does not travel to the engine's process
        else:
            config = from_sampling_params(params, self.of_model)
            check_fields(config)
        self._set_eos(params, config)
        request = HFRequest(
            fields=step_fields(config),
            eos_token_ids=eos_token_ids(config),
            prompt_len=prompt_len,
            max_length=prompt_len + (params.max_tokens or 0),
            seed=params.seed,
        )
        self._check_processors(request)
        request.attach(params)
        turn_off_processors(params)

    def _limit_length(
        self, params: HFSamplingParams, config: GenerationConfig, prompt_len: int
    ) -> None:
        params.max_tokens = max_new_tokens(
            config,
            length_is_default=params._length_is_default,
            prompt_len=prompt_len,
            max_position_embeddings=self.max_position_embeddings,
        )
        if prompt_len + params.max_tokens > self.max_model_len:
            raise VLLMValidationError(
                f"The prompt's {prompt_len} tokens and {params.max_tokens} new ones exceed "
                f"max_model_len={self.max_model_len}, where Hugging Face would go on: raise "
                "max_model_len or lower max_new_tokens."
            )

    @staticmethod
    def _set_eos(params: SamplingParams, config: GenerationConfig) -> None:
        """Stop at HF's EOS ids alone: vLLM adds the tokenizer's, which HF does not look at."""
        if not params.ignore_eos:
            eos = eos_token_ids(config)
            params._eos_token_id = eos[0] if eos else None
            params.stop_token_ids = list(dict.fromkeys([*(params.stop_token_ids or []), *eos[1:]]))
            params._all_stop_token_ids.update(eos)
        # vLLM's own rule, which runs after this one, adds nothing to a request that ignores EOS.
        params.ignore_eos = True
