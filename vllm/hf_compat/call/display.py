"""vLLM's ``SamplingParams`` in HF's terms.

=================== ======================== ============================================
SamplingParams      GenerationConfig         remark
=================== ======================== ============================================
temperature         do_sample, temperature   below 1e-5: greedy search; the constructor of
                                             ``SamplingParams`` raises others to 0.01
top_k               top_k                    0 and -1: off
top_p               top_p
min_p               min_p                    0: off
repetition_penalty  repetition_penalty
seed                ``torch.manual_seed``
max_tokens          max_new_tokens
n                   num_return_sequences     1, or greedy
stop_token_ids      besides eos_token_id
=================== ======================== ============================================

Everything else of ``SamplingParams`` (presence and frequency penalty, logit bias, ``min_tokens``,
allowed tokens, structured output) has no counterpart in HF and acts before HF's processors.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

from transformers import GenerationConfig

from vllm.exceptions import VLLMValidationError
from vllm.hf_compat.call.generation_config import merge_generation_config
from vllm.sampling_params import SamplingParams

SAMPLING_EPS = 1e-5
"""vLLM's own bound below which a temperature means greedy search."""


SAID_BY_BOTH = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
"""Fields that ``SamplingParams`` and ``GenerationConfig`` have."""

_DEFAULTS: dict[str, Any] = {
    name: getattr(SamplingParams(), name) for name in (*SAID_BY_BOTH, "max_tokens")
}
"""Of ``SamplingParams``, for the fields that HF has, too."""


def said_by_both(params: SamplingParams) -> tuple[float, int, float, float, float]:
    """Return the arguments of `in_hf_terms`. HF asks for floats, and to vLLM 2 is 2.0."""
    return (
        float(params.temperature),
        params.top_k,
        float(params.top_p),
        float(params.min_p),
        float(params.repetition_penalty),
    )


def in_hf_terms(
    of_model: GenerationConfig,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    repetition_penalty: float,
    *,
    body: Mapping[str, Any] | None = None,
) -> GenerationConfig:
    """Say what ``SamplingParams`` ask for in HF's terms.

    What they cannot say (``suppress_tokens``, ...) comes from the model, as it does in
    `generate()`; what they can say is theirs alone, and so is the number of answers, which is not
    looked at here (``n``).

    Args:
        of_model: the model's ``generation_config``.
        temperature: and the others, as ``SamplingParams`` have them.
        body: what a client has said in HF's terms (`body.BodyFields`), which wins.

    Raises:
        VLLMValidationError: HF's reason why `body`, or the model's configuration, cannot be.
    """
    given = copy.deepcopy(of_model)
    given.num_return_sequences = 1
    given.do_sample = temperature >= SAMPLING_EPS
    given.temperature = temperature if given.do_sample else None
    given.top_k = max(top_k, 0)
    given.top_p = top_p
    given.min_p = min_p
    given.repetition_penalty = repetition_penalty
    given.output_scores = given.output_logits = False  # nobody looks for them
    if body:
        _say(given, body)
    try:
        return merge_generation_config(given, of_model)
    except ValueError as error:
        raise VLLMValidationError(str(error)) from None


def _say(given: GenerationConfig, body: Mapping[str, Any]) -> None:
    """Set the fields of `body` in `given`, as HF checks and converts them."""
    fields = {"do_sample": given.do_sample, **body}
    if body.get("do_sample"):
        fields.setdefault("temperature", None)  # the model's, not vLLM's default
    try:
        checked = GenerationConfig(**fields)
    except (ValueError, TypeError) as error:
        raise VLLMValidationError(str(error)) from None
    for name in fields:
        setattr(given, name, getattr(checked, name))


def shown_fields(config: GenerationConfig) -> dict[str, Any]:
    """Return fields of ``SamplingParams`` that say what a merged configuration asks for.

    Who reads, or changes, the parameters of a `generate()` call finds them: see `take_changes`.
    Values that vLLM does not have are left out, since HF refuses them or knows more of them, and
    ``min_p``, which vLLM does not have together with drafts.
    """
    shown = {
        "temperature": 1.0 if config.temperature is None else config.temperature,
        "top_k": config.top_k or 0,
        "top_p": 1.0 if config.top_p is None else config.top_p,
        "repetition_penalty": 1.0
        if config.repetition_penalty is None
        else config.repetition_penalty,
    }
    if not config.do_sample:
        shown["temperature"] = 0.0
    fields = {name: value for name, value in shown.items() if _is_of_vllm(name, value)}
    return {**fields, "max_tokens": config.max_new_tokens}


def _is_of_vllm(name: str, value: Any) -> bool:
    """Whether ``SamplingParams`` takes a value."""
    try:
        SamplingParams(**{name: value})
    except (ValueError, TypeError, VLLMValidationError):
        return False
    return True


def take_changes(
    params: SamplingParams, config: GenerationConfig, shown: Mapping[str, Any]
) -> bool:
    """Write what was changed since `shown_fields` into a merged configuration, in place.

    Args:
        params: made of `config`; what is changed means what it means to vLLM.
        config: the configuration.
        shown: what `shown_fields` returned for it.

    Returns:
        Whether a length was set.
    """
    before = {**_DEFAULTS, **shown}
    now: dict[str, Any] = dict(zip(SAID_BY_BOTH, said_by_both(params), strict=True))
    now["max_tokens"] = params.max_tokens
    changed = {name: value for name, value in now.items() if value != before[name]}
    if "temperature" in changed:
        config.do_sample = changed["temperature"] >= SAMPLING_EPS
        config.temperature = changed["temperature"] if config.do_sample else None
    if "top_k" in changed:
        config.top_k = max(changed["top_k"], 0)
    for name in {"top_p", "min_p", "repetition_penalty"} & changed.keys():
        setattr(config, name, changed[name])
    if changed.get("max_tokens") is not None:
        config.max_new_tokens = changed["max_tokens"]
    return changed.get("max_tokens") is not None


def check_logit_bias(bias: Any, place: str = "logit_bias") -> None:
    """Refuse a bias that is NaN, which vLLM would read as -100, or add to the logits.

    Infinite ones are left alone: to the API they are 100 and -100, as all that is beyond these.

    Args:
        bias: of each token, a number or a text that is read as one; None for no biases.
        place: what they are called where they come from.

    Raises:
        VLLMValidationError: names the token.
    """
    for token, value in bias.items() if isinstance(bias, Mapping) else ():
        if _is_nan(value):
            raise VLLMValidationError(
                f"{place} of token {token} is {value}, which is no number: give one from -100 to "
                "100, or leave the token out.",
                parameter="logit_bias",
            )


def _is_nan(value: Any) -> bool:
    try:
        return math.isnan(float(value))
    except (TypeError, ValueError, OverflowError):
        return False  # others say what is wrong with it


def turn_off_processors(params: SamplingParams) -> None:
    """Leave the choice of a token to HF's rules: vLLM's engine sees a greedy request."""
    params.temperature = 0.0
    params.top_k = 0
    params.top_p = 1.0
    params.min_p = 0.0
    params.repetition_penalty = 1.0
    params.seed = None
