"""What a request carries from the process that accepts it to the worker that runs it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field, fields
from typing import Any

from vllm.sampling_params import SamplingParams

EXTRA_ARGS_KEY = "hf_compat"
"""Key in ``SamplingParams.extra_args``, which vLLM carries to the workers untouched."""

LISTS = ("sequence_bias", "bad_words_ids", "suppress_tokens", "begin_suppress_tokens")
"""Fields that may be long. Each travels as one piece, since all that a request passes (copies,
checks, two encodings, a garbage collector) would look at every list of a list.
"""


def packed(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields in types that vLLM's message transport accepts, `LISTS` as bytes.

    Args:
        fields: by HF's names, in types that JSON has.
    """
    carried = fields.carried if isinstance(fields, PackedFields) else fields
    return {
        name: json.dumps(value).encode()
        if name in LISTS and not isinstance(value, bytes)
        else value
        for name, value in carried.items()
    }


class PackedFields(Mapping[str, Any]):
    """Fields that were `packed`; each list is read when it is asked for.

    Args:
        carried: the packed ones.
    """

    def __init__(self, carried: dict[str, Any]) -> None:
        self.carried = carried

    def __getitem__(self, name: str) -> Any:
        value = self.carried[name]
        return json.loads(value) if name in LISTS else value

    def __iter__(self) -> Iterator[str]:
        return iter(self.carried)

    def __len__(self) -> int:
        return len(self.carried)

    def __contains__(self, name: object) -> bool:
        return name in self.carried

    def __repr__(self) -> str:
        return repr(dict(self))


@dataclass(frozen=True)
class HFRequest:
    """HF's semantics for one request, in types that vLLM's message transport accepts.

    Attributes:
        fields: the fields of the merged ``GenerationConfig`` that change what a step does with
            its logits; empty for plain greedy search.
        eos_token_ids: HF's ``eos_token_id`` as a list, which several processors look at.
        prompt_len: number of prompt tokens, padding and embeddings included.
        max_length: prompt and new tokens together, at most.
        seed: of ``torch.manual_seed``; None draws as the worker's global generator says.
        row: the place of this sequence in the HF batch whose generator it shares; of a prompt's
            request, that of its first sequence (`child_params`).
        num_rows: rows of that batch; HF has ``num_return_sequences`` rows for each prompt.
        left_padding: how many padding tokens HF would have before the prompt in that batch.
        pad_token_id: of the padding.
        negative_prompt_ids: what guidance leads away from; None is the prompt's last token.
        pickled: custom processors and callbacks, of an offline request (cloudpickle).
        stop_strings: HF's field of that name.
        max_time: likewise, in seconds.
        criteria: the caller's own criteria, packed likewise.
        criteria_see_scores: whether they are given the scores of all steps, or None.
        receipt: what its receipt says of the engine: ``model``, its name, and ``flags``; None
            without a receipt.
    """

    fields: Mapping[str, Any] = field(default_factory=dict)
    eos_token_ids: list[int] = field(default_factory=list)
    prompt_len: int = 0
    max_length: int = 0
    seed: int | None = None
    row: int = 0
    num_rows: int = 1
    left_padding: int = 0
    pad_token_id: int = 0
    negative_prompt_ids: list[int] | None = None
    pickled: bytes | None = None
    stop_strings: str | list[str] | None = None
    max_time: float | None = None
    criteria: bytes | None = None
    criteria_see_scores: bool = False
    receipt: Mapping[str, Any] | None = None

    @property
    def num_beams(self) -> int:
        """1 unless this is beam search or beam sampling."""
        return int(self.fields.get("num_beams", 1))

    @property
    def is_guided(self) -> bool:
        """Whether a second row sees the negative prompt."""
        return "guidance_scale" in self.fields

    @property
    def num_batch_rows(self) -> int:
        """How many rows of the worker's batch the request takes."""
        return 2 if self.is_guided else self.num_beams

    @property
    def has_criteria(self) -> bool:
        """Whether more than lengths and ids end the answer."""
        return any(one is not None for one in (self.stop_strings, self.max_time, self.criteria))

    def attach(self, params: SamplingParams) -> None:
        """Store this request in `params`, replacing what a client may have put there."""
        carried = {name: getattr(self, name) for name in _NAMES}
        carried["fields"] = packed(self.fields)
        params.extra_args = {**(params.extra_args or {}), EXTRA_ARGS_KEY: carried}

    @staticmethod
    def has_receipt(params: SamplingParams | None) -> bool:
        """Whether a request wants a receipt; asked in every step."""
        carried = ((params and params.extra_args) or {}).get(EXTRA_ARGS_KEY) or {}
        return carried.get("receipt") is not None

    @staticmethod
    def is_plain(params: SamplingParams | None) -> bool:
        """Whether `params` ask for greedy search on the bare logits; asked in every step."""
        carried = (params.extra_args or {}).get(EXTRA_ARGS_KEY) if params is not None else None
        return not carried or (not carried["fields"] and carried["pickled"] is None)

    @classmethod
    def of(cls, params: SamplingParams | None) -> HFRequest:
        """Read the request that `attach` stored; all defaults if there is none."""
        carried = (params.extra_args or {}).get(EXTRA_ARGS_KEY) if params is not None else None
        if params is None or not carried:
            return cls()
        return cls(**{**carried, "fields": PackedFields(carried["fields"])})


def child_params(params: SamplingParams, index: int) -> SamplingParams | None:
    """Return the parameters of one of the ``params.n`` sequences of a prompt, with its row.

    vLLM gives all sequences the same parameters.

    Args:
        params: of the prompt.
        index: of the sequence.

    Returns:
        None for a request that is not hf_compat's.
    """
    carried = (params.extra_args or {}).get(EXTRA_ARGS_KEY)
    if not carried:
        return None
    own = copy(params)
    own.n = 1
    own.extra_args = {
        **(params.extra_args or {}),
        EXTRA_ARGS_KEY: {**carried, "row": carried["row"] + index},
    }
    return own


_NAMES = [one.name for one in fields(HFRequest)]
