"""The edge where requests enter: HF's defaults, lengths, stopping rule and checks.

One `Frontend` belongs to vLLM's ``InputProcessor``, which every request passes, offline or over
HTTP. It sees a request twice: as the caller's parameters (`to_sampling_params`, `check`) and,
once the prompt is tokenised, as the engine's own copy (`finish`).
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import cloudpickle
from transformers import GenerationConfig, PretrainedConfig

from vllm.exceptions import VLLMValidationError
from vllm.fork.flags.fork_flags import ForkFlags
from vllm.hf_compat.call.display import (
    SAID_BY_BOTH,
    check_logit_bias,
    in_hf_terms,
    said_by_both,
    shown_fields,
    take_changes,
    turn_off_processors,
)
from vllm.hf_compat.call.generate_call import GenerateCall, pack
from vllm.hf_compat.call.generation_config import (
    eos_token_ids,
    load_generation_config,
    max_new_tokens,
)
from vllm.hf_compat.call.plain_values import checked_seed, use_whole_numbers
from vllm.hf_compat.call.request import EXTRA_ARGS_KEY, HFRequest
from vllm.hf_compat.call.support import check_call, check_request, step_fields
from vllm.hf_compat.grammars.params import StructuredParams, leave_grammars_to_the_engine
from vllm.hf_compat.logits.processor_check import ProcessorCheck
from vllm.hf_compat.receipts.requests import check_receipt, engine_of_receipts
from vllm.hf_compat.receipts.resolved_params import ResolvedParams
from vllm.hf_compat.receipts.wishes import wants_receipt
from vllm.hf_compat.rows.capacity import Room, check_beams, check_guidance
from vllm.hf_compat.server.body import LENGTHS, take_body
from vllm.hf_compat.texts.stopping import check_criteria, check_stop_strings
from vllm.sampling_params import BeamSearchParams, SamplingParams
from vllm.tokenizers import cached_tokenizer_from_config

if TYPE_CHECKING:
    import torch

    from vllm.config import VllmConfig


class HFSamplingParams(StructuredParams, kw_only=True):  # type: ignore[call-arg]
    """A ``SamplingParams`` made from a `generate()` call, which it keeps until the prompt is
    known: HF's ``max_length`` counts the prompt.

    Only the accepting process sees the subclass; `Frontend.finish` writes everything that the
    engine needs into ordinary fields. All that it keeps is in a field that copies, pickles and
    messages have; no client of the server can set it.
    """

    _resolved: bytes | None = None
    """A `GenerateCall`, its merged configuration, whether nobody has set ``max_length``, and
    `shown_fields`.
    """

    def __post_init__(self) -> None:
        """As of ``SamplingParams``, which raises a low temperature, and forgets what a greedy
        request does not use. Copies are made in this way, too, and would look as if the caller had
        changed that; and they may be told to sample afterwards.
        """
        shown = {name: getattr(self, name) for name in SAID_BY_BOTH}
        super().__post_init__()
        if self._resolved is not None:
            for name, value in shown.items():
                setattr(self, name, value)


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
        tokenizer=(
            None
            if model_config.skip_tokenizer_init
            else lambda: cached_tokenizer_from_config(model_config)
        ),
        room=Room(vllm_config),
        receipt=engine_of_receipts(vllm_config),
    )


def accept_params(frontend: Frontend | None, params: Any) -> Any:
    """Turn every ``GenerationConfig`` or `GenerateCall` in `params` (one or a sequence) into
    ``SamplingParams``.

    Raises:
        VLLMValidationError: a ``GenerationConfig`` without hf_compat, or one that `Frontend`
            refuses, or parameters that another engine has resolved.
    """
    if isinstance(params, Sequence) and not isinstance(params, str):
        return [accept_params(frontend, item) for item in params]
    if frontend is None:
        _check_is_upstreams(params)
    elif isinstance(params, dict):
        raise VLLMValidationError(
            "The parameters are a dict: give a transformers.GenerationConfig, or its fields as "
            "keyword arguments, or vLLM's SamplingParams."
        )
    elif isinstance(params, GenerationConfig | GenerateCall):
        return frontend.to_sampling_params(params)
    elif isinstance(params, SamplingParams):
        return leave_grammars_to_the_engine(params)
    return params


def _check_is_upstreams(params: Any) -> None:
    """Refuse what only an engine in hf_compat may be given; it would be ignored, or half honoured.

    Raises:
        VLLMValidationError: says what is wrong.
    """
    if isinstance(params, GenerationConfig | GenerateCall | HFSamplingParams):
        raise VLLMValidationError(
            "A transformers GenerationConfig needs hf_compat: pass LLM(..., hf_compat=True), or "
            "use vllm.SamplingParams."
        )
    if EXTRA_ARGS_KEY in (getattr(params, "extra_args", None) or {}):
        raise VLLMValidationError(
            f"extra_args[{EXTRA_ARGS_KEY!r}] is what an engine in hf_compat writes for itself: "
            "leave it out."
        )


class Frontend:
    """Resolves requests as `generate()` would for one model.

    Args:
        of_model: the model's ``generation_config``.
        model_config: Transformers' configuration of the model.
        max_model_len: the engine's limit of prompt and answer together, in tokens.
        vocab_size: width of the logits.
        tokenizer: returns the model's; None if the engine does not turn tokens into text.
        room: for requests of several rows.
        receipt: what receipts say of the engine (`HFRequest.receipt`); None without receipts.
    """

    def __init__(
        self,
        of_model: GenerationConfig,
        model_config: PretrainedConfig,
        *,
        max_model_len: int,
        vocab_size: int,
        tokenizer: Callable[[], Any] | None = None,
        room: Room | None = None,
        receipt: dict[str, Any] | None = None,
    ) -> None:
        self.of_model = of_model
        self.max_model_len = max_model_len
        self._tokenizer = tokenizer
        self.vocab_size = vocab_size
        self._room = room or Room()
        self.max_position_embeddings: int | None = getattr(
            model_config, "max_position_embeddings", None
        )
        self._check_processors = ProcessorCheck(model_config, vocab_size)
        self._receipt = receipt
        # Prompts mostly come with the same parameters.
        self._asked_by = functools.lru_cache(maxsize=64)(self._of_values)

    def to_sampling_params(
        self, given: GenerateCall | GenerationConfig | None = None
    ) -> SamplingParams:
        """Resolve a `generate()` call against the model's configuration, as HF does.

        Args:
            given: the call, or its configuration; None for `generate()` without arguments.

        Raises:
            VLLMValidationError: it asks for something that this release does not reproduce.
        """
        call = GenerateCall.of(given)
        merged = call.merged(self.of_model)
        check_request(merged)
        check_call(call, merged)
        is_search = merged.num_beams > 1  # one request of the engine, with several answers
        params = HFSamplingParams(
            n=1 if is_search else max(1, merged.num_return_sequences),
            max_tokens=merged.max_new_tokens,
            seed=_as_vllm_keeps_it(call.seed),
        )
        shown = shown_fields(merged)
        for name, value in shown.items():
            setattr(params, name, value)
        params._resolved = pack((call, merged, call.has_default_length(self.of_model), shown))
        return params

    def check(self, params: SamplingParams | BeamSearchParams) -> None:
        """Refuse what hf_compat would have to answer differently from HF.

        Raises:
            VLLMValidationError: beam search with vLLM's parameters.
        """
        if isinstance(params, BeamSearchParams):
            raise VLLMValidationError(
                "vLLM's beam search gives other beams than Hugging Face's: pass "
                "GenerationConfig(num_beams=...), or num_beams in the body of the request."
            )

    def finish(
        self, params: SamplingParams, prompt_len: int, prompt_embeds: torch.Tensor | None = None
    ) -> None:
        """Write HF's rules into the engine's own copy of a request's parameters, in place.

        Args:
            params: the copy that goes to the engine.
            prompt_len: number of prompt tokens.
            prompt_embeds: of a prompt that is given as embeddings.

        Raises:
            VLLMValidationError: HF refuses it, or the length does not fit, in HF's sense or into
                the engine's context window.
        """
        if isinstance(params, ResolvedParams):
            request = HFRequest.of(params)
            self._check_processors(request)
            self._accept(request, params, prompt_embeds)
            return
        use_whole_numbers(params)
        asked = self._resolve(params, prompt_len)
        if params.max_tokens is None:
            params.max_tokens = self.max_model_len - prompt_len
        request = _with_prompt(asked, params, prompt_len)
        if request.num_beams > 1:
            params.n = 1
            self._check_processors(request)  # HF refuses more answers than beams
        self._accept(request, params, prompt_embeds)
        if request.num_beams > 1:
            params.ignore_eos = True
        else:
            self._set_eos(params, request.eos_token_ids)
        turn_off_processors(params)
        one = copy.copy(params)
        one.n = 1
        one._verify_args()  # the engine does the same, and a failure there would stop it

    def _resolve(self, params: SamplingParams, prompt_len: int) -> HFRequest:
        """Return what is asked for, whatever the prompt; write its length into the parameters."""
        if isinstance(params, HFSamplingParams):
            assert params._resolved is not None, "these parameters are finished already"
            call, config, length_is_default, shown = cloudpickle.loads(params._resolved)
            params._resolved = None  # does not travel to the engine's process
            length_is_default &= not take_changes(params, config, shown)
            padding = call.place.left_padding
            self._limit_length(
                params, config, prompt_len, padding, length_is_default=length_is_default
            )
            return self._checked(call, config)
        body = take_body(params)
        for name in ("output_scores", "output_logits"):
            if body.get(name):
                raise VLLMValidationError(
                    f"{name} has no place in an OpenAI answer: ask for logprobs, or use "
                    "LLM.generate()."
                )
        values = said_by_both(params)
        if not body:
            return self._asked_by(*values)
        call = GenerateCall(negative_prompt_ids=body.pop("negative_prompt_ids", None))
        config = in_hf_terms(self.of_model, *values, body=body)
        check_request(config)
        if any(name in body for name in LENGTHS):
            self._limit_length(params, config, prompt_len, length_is_default=False)
        return self._checked(call, config)

    def _of_values(self, *values: Any) -> HFRequest:
        """Return what parameters of these values (`said_by_both`) ask for."""
        config = in_hf_terms(self.of_model, *values)
        check_request(config)
        return self._checked(GenerateCall(), config)

    def _checked(self, call: GenerateCall, config: GenerationConfig) -> HFRequest:
        """Return a request without its prompt.

        Raises:
            VLLMValidationError: HF refuses its processors.
        """
        request = _without_prompt(call, config)
        self._check_processors(request)
        return request

    def _accept(
        self, request: HFRequest, params: SamplingParams, prompt_embeds: torch.Tensor | None
    ) -> None:
        """Attach a request to its parameters, with what its receipt says if it wants one.

        Raises:
            VLLMValidationError: see `_check` and `check_receipt`.
        """
        self._check(request, params, prompt_embeds)
        if self._receipt is not None and wants_receipt():
            check_receipt(request, params, prompt_embeds)
            request = replace(request, receipt=self._receipt)
        request.attach(params)

    def _check(
        self, request: HFRequest, params: SamplingParams, prompt_embeds: torch.Tensor | None
    ) -> None:
        """Refuse what would fail, or could not be answered, in the engine."""
        if request.is_guided:
            check_guidance(request, prompt_embeds, self.vocab_size)
        if request.num_batch_rows > 1:
            self._room.check(request)
        if request.num_beams > 1:
            check_beams(request, params, prompt_embeds)
        _check_is_text(params)
        check_logit_bias(params.logit_bias)
        self._check_stop_strings(params, request)
        check_criteria(request)

    def _check_stop_strings(self, params: SamplingParams, request: HFRequest) -> None:
        if request.stop_strings is not None:
            if self._tokenizer is None or not params.detokenize:
                raise VLLMValidationError(
                    "stop_strings are looked for with the model's tokenizer, which this request or "
                    "engine leaves out: set detokenize=True, and skip_tokenizer_init=False."
                )
            check_stop_strings(request.stop_strings, self._tokenizer())

    @functools.cached_property
    def _special_ids(self) -> frozenset[int]:
        """The tokens that are left out of texts."""
        return frozenset(self._tokenizer().all_special_ids if self._tokenizer is not None else ())

    def _limit_length(
        self,
        params: SamplingParams,
        config: GenerationConfig,
        prompt_len: int,
        padding: int = 0,
        *,
        length_is_default: bool,
    ) -> None:
        params.max_tokens = max_new_tokens(
            config,
            length_is_default=length_is_default,
            prompt_len=padding + prompt_len,
            max_position_embeddings=self.max_position_embeddings,
        )
        if prompt_len + params.max_tokens > self.max_model_len:
            # One is also what is tried before the prompt is known.
            prompt = "Even one token" if prompt_len == 1 else f"The prompt's {prompt_len} tokens"
            raise VLLMValidationError(
                f"{prompt} and {params.max_tokens} new ones exceed "
                f"max_model_len={self.max_model_len}, where Hugging Face would go on: raise "
                "max_model_len or lower max_new_tokens."
            )

    def _set_eos(self, params: SamplingParams, eos: list[int]) -> None:
        """Stop at HF's EOS ids alone: vLLM adds the tokenizer's, which HF does not look at."""
        if not params.ignore_eos:
            if not (params.stop or params.stop_token_ids or self._special_ids.issuperset(eos)):
                # What is decoded of an answer of `generate()` has them.
                params.include_stop_str_in_output = True
            params._eos_token_id = eos[0] if eos else None
            params.stop_token_ids = list(dict.fromkeys([*(params.stop_token_ids or []), *eos[1:]]))
            params._all_stop_token_ids = {*params._all_stop_token_ids, *eos}  # it may be shared
        # vLLM's own rule, which runs after this one, adds nothing to a request that ignores EOS.
        params.ignore_eos = True


def _check_is_text(params: SamplingParams) -> None:
    """Refuse texts that no message can carry, such as half of a pair of surrogates.

    Raises:
        VLLMValidationError: names the text.
    """
    for text in params.stop or []:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise VLLMValidationError(
                f"stop={text!r:.100} is no text in UTF-8: {error.reason}.", parameter="stop"
            ) from None


def _as_vllm_keeps_it(seed: Any) -> Any:
    """Return a seed, by another name if vLLM would drop it: PyTorch takes -1 modulo 2^64."""
    return (1 << 64) - 1 if seed == -1 else seed


def _without_prompt(call: GenerateCall, config: GenerationConfig) -> HFRequest:
    """Return what the worker needs to know of a call, but what `_with_prompt` adds."""
    eos, place = eos_token_ids(config), call.place
    pad_token_id = place.pad_token_id if place.pad_token_id is not None else config.pad_token_id
    return HFRequest(
        fields=step_fields(config),
        eos_token_ids=eos,
        row=place.row,
        num_rows=place.num_rows,
        left_padding=place.left_padding,
        pad_token_id=pad_token_id if pad_token_id is not None else next(iter(eos), 0),
        negative_prompt_ids=call.negative_prompt_ids,
        pickled=call.callbacks,
        stop_strings=config.stop_strings,
        max_time=config.max_time,
        criteria=call.criteria,
        criteria_see_scores=bool(config.return_dict_in_generate and config.output_scores),
    )


def _with_prompt(asked: HFRequest, params: SamplingParams, prompt_len: int) -> HFRequest:
    """Return a request (`_without_prompt`) with its lengths, seed and answers."""
    assert params.max_tokens is not None
    prompt_len += asked.left_padding
    fields, num_answers = asked.fields, params.n
    if asked.num_beams > 1:  # one request of the engine, with several answers
        if num_answers > 1:
            fields = {**fields, "num_return_sequences": num_answers}
        num_answers = 1
    return replace(
        asked,
        fields=fields,
        prompt_len=prompt_len,
        max_length=prompt_len + params.max_tokens,
        seed=checked_seed(params.seed),
        row=asked.row * num_answers,
        num_rows=asked.num_rows * num_answers,
    )
