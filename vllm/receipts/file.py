"""Where receipts stand in a file: JSON lines of answers, or of receipts alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import msgspec

from vllm.receipts.receipt import SEALED, Receipt, chain_of

_Token = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]
_Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]+$")]


class _Form(msgspec.Struct, forbid_unknown_fields=True):
    """The types of a receipt's fields."""

    version: int
    numerics: int
    model: dict[str, str]
    flags: dict[str, Any]
    prompt: list[_Token]
    parameters: dict[str, dict[str, Any]]
    seals: dict[str, _Digest]
    output: Annotated[list[_Token], msgspec.Meta(min_length=1)]
    finish: list[Any]
    logits: str


@dataclass(frozen=True)
class Claim:
    """An answer with its receipt, as a file has it.

    Attributes:
        place: the line, from 1, and which of its answers.
        receipt: of the form that receipts have; None if there is none.
        problem: why there is none.
        texts: of the answer, as they stand beside the receipt.
        token_ids: likewise; None if there are none.
        is_parsed: whether its text was taken apart, into tool calls or reasoning.
        has_answer: whether it is an answer, and no row that got none.
    """

    place: str
    receipt: Receipt | None = None
    problem: str = ""
    texts: tuple[Any, ...] = ()
    token_ids: Any = None
    is_parsed: bool = False
    has_answer: bool = True


def claims_of(file: Path) -> Iterator[Claim]:
    """Yield the answers of a file, line by line, and the rows that got none.

    Args:
        file: each line an answer of the server's or of ``vllm bulk``, or a receipt.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no file that can be read twice.
    """
    if file.exists() and not file.is_file():
        raise ValueError(f"{file} is no regular file, and is read more than once: save it first.")
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield from _claims_of_line(line, f"line {number}")


def _claims_of_line(line: bytes, place: str) -> Iterator[Claim]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        yield Claim(place, problem="it is not JSON")
        return
    body = value
    if isinstance(value, dict) and isinstance(value.get("response"), dict):
        body = value["response"].get("body")
    choices = body.get("choices") if isinstance(body, dict) else None
    if isinstance(choices, list) and choices:
        for number, choice in enumerate(choices):
            yield _claim_of_choice(choice, f"{place}, answer {number + 1}")
    elif isinstance(value, dict) and value.get("error") is not None:
        yield Claim(place, problem="it got no answer", has_answer=False)
    else:
        yield _claim(body, place)


def _claim_of_choice(choice: Any, place: str) -> Claim:
    if not isinstance(choice, dict) or "receipt" not in choice:
        return Claim(place, problem="it has no receipt")
    message = choice.get("message")
    said = [choice.get("text")]
    is_parsed = False
    if isinstance(message, dict):
        is_parsed = bool(message.get("tool_calls") or message.get("reasoning"))
        said += [] if is_parsed else [message.get("content")]
    elif message is not None:
        said.append(message)  # which is none
    return replace(
        _claim(choice["receipt"], place),
        texts=tuple(one for one in said if one is not None),
        token_ids=choice.get("token_ids"),
        is_parsed=is_parsed,
    )


def _claim(value: Any, place: str) -> Claim:
    try:
        check_form(value)
    except ValueError as error:
        return Claim(place, problem=f"it is no receipt ({error})")
    return Claim(place, value)


def check_form(value: Any) -> None:
    """Check the form of a receipt, and nothing that it says.

    Raises:
        ValueError: says what is wrong.
    """
    form = msgspec.convert(value, _Form)
    if set(form.seals) != {*SEALED} or any(len(one) != 16 for one in form.seals.values()):
        raise ValueError(f"seals has other entries than {', '.join(SEALED)}, of 16 digits")
    if set(form.parameters) != {"hf", "vllm"} or len(form.finish) != 2:
        raise ValueError("parameters or finish has other entries than it ought to")
    chain_of(value)
