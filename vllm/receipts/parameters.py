"""The parameters of a request as a receipt has them, in types that JSON has, and back."""

from __future__ import annotations

from dataclasses import MISSING, fields
from itertools import chain
from typing import Any

import msgspec

from vllm.exceptions import VLLMValidationError
from vllm.hf_compat.call.request import HFRequest
from vllm.hf_compat.receipts.resolved_params import CLAIMED_KEY, ResolvedParams
from vllm.sampling_params import RequestOutputKind, SamplingParams

_NOT_CARRIED = ("pickled", "criteria", "criteria_see_scores", "max_time", "receipt")
"""Of `HFRequest`: what a request with a receipt does not have, and the receipt's own."""

_ABOUT_THE_ANSWER = (
    "extra_args",
    "logprobs",
    "prompt_logprobs",
    "logprob_token_ids",
    "output_kind",
    "skip_clone",
    "n",
    "seed",
)
"""Of ``SamplingParams``: what changes no token in hf_compat, which has its own row and seed."""

_MOST_ROWS = 1 << 16
"""Of a batch of `generate()`: draws of a row come after those of all others."""


def parameters_of(params: SamplingParams) -> dict[str, Any]:
    """Return what decides about a request's tokens beside model and prompt.

    Args:
        params: of one sequence, as they go to the engine.

    Returns:
        ``hf``: what `HFRequest` has beside its defaults; ``vllm``: likewise ``SamplingParams``.
    """
    request = HFRequest.of(params)
    hf: dict[str, Any] = {}
    for field in fields(HFRequest):
        value = getattr(request, field.name)
        default = field.default if field.default is not MISSING else field.default_factory()  # type: ignore[misc]
        if field.name not in _NOT_CARRIED and value != default:
            hf[field.name] = dict(value) if field.name == "fields" else value
    own: dict[str, Any] = msgspec.to_builtins(params)
    for name in _ABOUT_THE_ANSWER:
        own.pop(name, None)
    return {"hf": hf, "vllm": {name: _in_order(value) for name, value in own.items()}}


def params_from(parameters: dict[str, Any], tokens: list[int], vocab_size: int) -> ResolvedParams:
    """Return the parameters of a request that answers as the one of a receipt did.

    Args:
        parameters: of the receipt.
        tokens: that its answer has; one more shows whether it would have gone on.
        vocab_size: of the model.

    Raises:
        VLLMValidationError: they are none.
    """
    try:
        params = msgspec.convert(parameters["vllm"], ResolvedParams)
        request = msgspec.convert(parameters["hf"], HFRequest)
        _check(params, parameters["hf"], request)
        _check_ids(params, vocab_size)
    except (TypeError, KeyError, ValueError, AttributeError, ArithmeticError) as error:
        raise VLLMValidationError(f"these are no parameters of a request ({error})") from None
    params.extra_args = {CLAIMED_KEY: tokens}
    request.attach(params)
    params.output_kind = RequestOutputKind.FINAL_ONLY
    params.max_tokens = min(params.max_tokens, len(tokens) + 1)
    return params


def _check(params: SamplingParams, said: dict[str, Any], request: HFRequest) -> None:
    """Refuse what no engine has written, and what would keep one busy.

    Raises:
        ValueError: says what is wrong.
    """
    known = {one.name for one in fields(HFRequest)} - {*_NOT_CARRIED}
    if foreign := said.keys() - known:
        raise ValueError(f"{min(foreign)} is not among them")
    if params.max_tokens is None:
        raise ValueError("max_tokens is missing")
    if not 0 <= request.row < request.num_rows <= _MOST_ROWS:
        raise ValueError(f"row {request.row} of {request.num_rows}")


def _check_ids(params: SamplingParams, vocab_size: int) -> None:
    """Refuse ids that vLLM takes for granted, since it has found them itself.

    Raises:
        ValueError: says what is wrong.
    """
    words = params._bad_words_token_ids or []
    if not all(words):
        raise ValueError("a word of _bad_words_token_ids has no tokens")
    eos = [] if params._eos_token_id is None else [params._eos_token_id]
    for token in [*eos, *params._all_stop_token_ids, *chain.from_iterable(words)]:
        if not 0 <= token < vocab_size:
            raise ValueError(f"{token} is no token of the model")


def _in_order(value: Any) -> Any:
    """Return sets, which have no order of their own, as sorted lists."""
    return sorted(value) if isinstance(value, set | frozenset) else value
