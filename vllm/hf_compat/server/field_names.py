"""Which names the fields of a request's body may have, and what is said of others.

A misspelt field would be ignored, and the client would get an answer to another question. A name is
known if vLLM's class of the body has it, or the API that the route speaks (the types of the openai
and anthropic packages), or Transformers' ``GenerationConfig``.
"""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Union, get_args, get_origin

import typing_extensions
from pydantic import BaseModel
from transformers import GenerationConfig

from vllm.exceptions import VLLMValidationError
from vllm.fork.nearest_name import nearest_name
from vllm.hf_compat.call.support import LOGITS_FIELDS, REFUSED_FIELDS, SAMPLING_FIELDS
from vllm.hf_compat.server.body import BodyFields

OF_HF = frozenset(
    {*BodyFields.model_fields, *LOGITS_FIELDS, *SAMPLING_FIELDS, *REFUSED_FIELDS, "constraints"}
)
"""HF's fields that change an answer: where they are not taken, they are refused."""

WITHOUT_EFFECT = frozenset(GenerationConfig().to_dict()) - OF_HF
"""HF's other fields (compilation, drafting, ids of padding): the tokens are the same with them."""

_ELSEWHERE = {
    "extra_body": "its fields belong into the body itself: only the openai client unpacks it",
    **dict.fromkeys(
        (
            "guided_json",
            "guided_regex",
            "guided_choice",
            "guided_grammar",
            "guided_decoding_backend",
            "guided_whitespace_pattern",
        ),
        "vLLM has structured_outputs for it",
    ),
}
"""Names that are nobody's typing error, and what takes their place."""

_SHOWN = 60  # characters of a name that a client has made up


@dataclass(frozen=True)
class Schema:
    """The names of an object, and the schemas of those of its fields that are objects themselves.

    Attributes:
        fields: None stands for a value whose names are the client's own affair.
    """

    fields: Mapping[str, Schema | None]

    @classmethod
    @functools.cache
    def of(cls, kinds: tuple[Any, ...], api: tuple[Any, ...] = ()) -> Schema:
        """Return the names of all of these classes together.

        Args:
            kinds: Pydantic models, dataclasses, ``TypedDict`` or msgspec classes that are read.
            api: likewise, of what a client may send besides; nobody looks into these fields.
        """
        read = [name for kind in kinds for name, _ in _fields(kind)]
        annotations: dict[str, list[Any]] = {}
        for kind in (*kinds, *api):
            for name, annotation in _fields(kind):
                annotations.setdefault(name, []).append(annotation)
        return cls(
            {
                name: _schema_of_value(found) if name in read else None
                for name, found in annotations.items()
            }
        )


def check_names(
    body: Mapping[str, Any], schema: Schema, place: str, *, is_strict: bool, prefix: str = ""
) -> None:
    """Refuse a body that asks for what nobody would look at.

    Args:
        body: as the client sent it.
        schema: of the fields that are looked at, or that the API of the route has.
        place: what the client calls, for the message.
        is_strict: refuse names that nobody knows, too, and not only those of HF.
        prefix: the names of the objects around `body`, each with a dot.

    Raises:
        VLLMValidationError: names the first such field, and the nearest name that is known.
    """
    for name, value in body.items():
        path = prefix + name
        if name in schema.fields:
            inner = schema.fields[name]
            if inner is not None and isinstance(value, dict):
                check_names(value, inner, place, is_strict=is_strict, prefix=f"{path}.")
        elif name in OF_HF:
            if value is not None:
                raise VLLMValidationError(
                    f"{path} of Hugging Face's generate() is not honoured by {place}: leave it "
                    "out, or send the request to /v1/completions or /v1/chat/completions.",
                    parameter=path,
                )
        elif is_strict and (prefix or name not in WITHOUT_EFFECT):
            raise VLLMValidationError(_unknown(path, name, schema, place), parameter=_shown(path))


def _unknown(path: str, name: str, schema: Schema, place: str) -> str:
    sentence = f"{place} has no field {_shown(path)!r}"
    if name in _ELSEWHERE:
        return f"{sentence}: {_ELSEWHERE[name]}."
    nearest = nearest_name(name, schema.fields)
    guess = f"did you mean {nearest}?" if nearest else "leave it out."
    return f"{sentence}: {guess} With --no-strict-body unknown fields are ignored."


def _shown(name: str) -> str:
    """Return a name of the client's as an answer can hold it: it may be long, or no valid text."""
    text = name.encode("ascii", "backslashreplace").decode()
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _fields(kind: Any) -> Iterator[tuple[str, Any]]:
    """Yield the names that a class takes, with their annotations."""
    if issubclass(kind, BaseModel):
        for name, field in kind.model_fields.items():
            yield name, field.annotation
            if field.alias is not None:
                yield field.alias, field.annotation
        return
    hints = typing_extensions.get_type_hints(kind)
    names: Iterable[str] = hints
    if dataclasses.is_dataclass(kind):
        names = [field.name for field in dataclasses.fields(kind) if field.init]
    elif hasattr(kind, "__struct_fields__"):
        names = kind.__struct_fields__
    for name in names:
        if not name.startswith("_"):
            yield name, hints[name]


def _schema_of_value(annotations: Iterable[Any]) -> Schema | None:
    """Return the schema of a field that is an object with known names in all of its forms."""
    kinds = []
    for arm in _arms(annotations):
        if _has_names(arm):
            kinds.append(arm)
        elif arm is Any or arm is object or _may_be_mapping(arm):
            return None
    return Schema.of(tuple(kinds)) if kinds else None


def _arms(annotations: Iterable[Any]) -> Iterator[Any]:
    for annotation in annotations:
        origin: Any = get_origin(annotation)
        if origin in (Union, types.UnionType):
            yield from _arms(get_args(annotation))
        elif origin in (Annotated, typing_extensions.Required, typing_extensions.NotRequired):
            yield from _arms(get_args(annotation)[:1])
        else:
            yield annotation


def _may_be_mapping(arm: Any) -> bool:
    kind = get_origin(arm) or arm
    return isinstance(kind, type) and issubclass(kind, Mapping)


def _has_names(arm: Any) -> bool:
    return isinstance(arm, type) and (
        issubclass(arm, BaseModel)
        or dataclasses.is_dataclass(arm)
        or typing_extensions.is_typeddict(arm)
        or hasattr(arm, "__struct_fields__")
    )
