"""How much a body may ask for, and what it may not hold: refused before any of it costs anything.

Some of HF's processors take time or memory with each entry or character of their parameters,
whatever the prompt; one request could keep the server busy, or out of memory. Every limit is a
flag of the server.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from vllm.exceptions import VLLMValidationError
from vllm.fork.flags.server_flags import ServerFlags
from vllm.hf_compat.call.display import check_logit_bias
from vllm.hf_compat.call.request import EXTRA_ARGS_KEY
from vllm.hf_compat.server.body import BODY_KEY

SEQUENCES = ("bad_words_ids", "sequence_bias", "force_words_ids")
TOKENS = (*SEQUENCES, "suppress_tokens", "begin_suppress_tokens", "eos_token_id")
NGRAMS = ("no_repeat_ngram_size", "encoder_no_repeat_ngram_size")

_NAMES_OF_A_PART = 8
_MOST_DEPTH = 128
"""Of lists and objects: what pickles a body for the workers goes down with each."""
_TRANSFERS = ("kv_transfer_params", "ec_transfer_params")


def check_body(body: Mapping[str, Any], flags: ServerFlags) -> None:
    """Refuse a body that is beyond a limit, or that writes where only the server may.

    Args:
        body: as the client sent it, in types that its schema allows.
        flags: of the server.

    Raises:
        VLLMValidationError: names the field, the limit and its flag, or what to do instead.
    """
    check_limits(body, flags)
    _at_most("the number of answers", _num_answers(body), flags, "max_requests")
    check_logit_bias(body.get("logit_bias"))
    _check_extra_args("vllm_xargs", body.get("vllm_xargs"))
    params = body.get("sampling_params")  # of /inference/v1/generate
    params = params if isinstance(params, dict) else {}
    check_logit_bias(params.get("logit_bias"), "sampling_params.logit_bias")
    extra_args = params.get("extra_args")
    _check_extra_args("sampling_params.extra_args", extra_args)
    if isinstance(extra_args, dict) and isinstance(extra_args.get(BODY_KEY), dict):
        check_limits(extra_args[BODY_KEY], flags)


def check_limits(fields: Mapping[str, Any], flags: ServerFlags) -> None:
    """Refuse HF's fields that are beyond a limit.

    Args:
        fields: by HF's names; fields of other types than theirs are left to others.
        flags: of the server.

    Raises:
        VLLMValidationError: names the field, the limit and its flag.
    """
    _at_most("num_beams", fields.get("num_beams"), flags, "max_num_beams")
    for name in NGRAMS:
        _at_most(name, fields.get(name), flags, "max_ngram_size")
    for name in SEQUENCES:
        value = fields.get(name)
        number = len(value) if isinstance(value, list) else 0
        _at_most(f"the number of entries of {name}", number, flags, "max_token_sequences")
    number = sum(1 for name in TOKENS for _ in _leaves(fields.get(name)))
    _at_most(f"the number of tokens in {', '.join(TOKENS)}", number, flags, "max_listed_tokens")
    strings = [text for text in _leaves(fields.get("stop_strings")) if isinstance(text, str)]
    _at_most("the number of stop_strings", len(strings), flags, "max_stop_strings")
    longest = max(map(len, strings), default=0)
    _at_most("the length of stop_strings", longest, flags, "max_stop_string_length")


def check_object(body: Any) -> None:
    """Refuse a body that is JSON and no object, or whose messages are no list: no route takes it.

    Upstream goes through messages before anything has looked at their type.

    Raises:
        VLLMValidationError: shows what it is.
    """
    if not isinstance(body, dict):
        raise VLLMValidationError(
            f"The body must be a JSON object with names and values, and is {json.dumps(body):.50}."
        )
    messages = body.get("messages", [])
    if not isinstance(messages, list) and (messages is not None or "prompt" not in body):
        raise VLLMValidationError(
            f"messages must be a list, and is {json.dumps(messages):.50}.", parameter="messages"
        )


def check_structure(body: Any, flags: ServerFlags) -> None:
    """Refuse a body with more lists and objects than a limit, with eight times as many names, or
    with too many in each other.

    Numbers and texts, such as the tokens of a prompt, do not count.

    Args:
        body: as JSON gives it.
        flags: of the server.

    Raises:
        VLLMValidationError: names the limit, and its flag if it has one.
    """
    limit, containers, names, depth = flags.max_body_parts, 0, 0, 0
    layer = [one for one in (body,) if isinstance(one, dict | list)]
    while layer and containers <= limit and names <= _NAMES_OF_A_PART * limit:
        containers += sum(isinstance(one, dict | list) for one in layer)
        names += sum(len(one) for one in layer if isinstance(one, dict))
        layer = [
            value
            for one in layer
            for value in (one.values() if isinstance(one, dict) else one)
            if isinstance(value, dict | list)
        ]
        depth += 1
        if depth > _MOST_DEPTH:
            raise VLLMValidationError(
                f"The body may have at most {_MOST_DEPTH} lists and objects in each other, and has "
                "more: send a flatter one."
            )
    parts = max(containers, -(-names // _NAMES_OF_A_PART))
    if parts > limit:
        raise VLLMValidationError(
            f"The body may have at most {limit} lists and objects, and {_NAMES_OF_A_PART} times as "
            "many names in these, and has more: send less, or start with a higher "
            "--max-body-parts."
        )


def _num_answers(body: Mapping[str, Any]) -> int:
    """Return how many answers a body asks for, each of which is a request of the engine."""
    questions = 1
    for name, of_one in (("prompt", int), ("messages", dict), ("items", int)):
        value = body.get(name)
        if isinstance(value, list) and value and not isinstance(value[0], of_one):
            questions = max(questions, len(value))
    numbers = [body.get(name) for name in ("n", "num_return_sequences")]
    return questions * max((one for one in numbers if isinstance(one, int)), default=1)


def check_text(sent: bytes, body: Any) -> None:
    """Refuse a body with half of a pair of surrogates, which no message can carry.

    Args:
        sent: as it came.
        body: as JSON gives it.

    Raises:
        VLLMValidationError: names the half.
    """
    if b"\\ud" not in sent and b"\\uD" not in sent:
        return
    try:
        json.dumps(body, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = error.object[error.start : error.end]
        raise VLLMValidationError(
            f"The body has {half!r:.20}, half of a pair, which is no text in UTF-8: {error.reason}."
        ) from None


def _at_most(what: str, value: Any, flags: ServerFlags, flag: str) -> None:
    limit = getattr(flags, flag)
    if isinstance(value, int) and value > limit:
        raise VLLMValidationError(
            f"{what} may be at most {limit}, and is {value} here: send less, or start with a "
            f"higher --{flag.replace('_', '-')}."
        )


def _leaves(value: Any) -> Iterator[Any]:
    """Yield what is in lists of lists, however deep they are."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, list):
            waiting.extend(one)
        elif one is not None:
            yield one


def _check_extra_args(place: str, extra_args: Any) -> None:
    if not isinstance(extra_args, dict):
        return
    if EXTRA_ARGS_KEY in extra_args or "pickled" in extra_args:
        key = EXTRA_ARGS_KEY if EXTRA_ARGS_KEY in extra_args else "pickled"
        raise VLLMValidationError(
            f"{place}.{key} is not for clients, of which no objects are run: send Hugging Face's "
            "fields in the body itself."
        )
    for name in _TRANSFERS:
        if extra_args.get(name) is not None and not isinstance(extra_args[name], dict):
            raise VLLMValidationError(
                f"{place}.{name} must be an object: send it as the field {name} of the body."
            )
