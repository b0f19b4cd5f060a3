"""Six hundred calls of `generate()`: each is equal, refused by both, or listed here."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from transformers import GenerationConfig, GenerationMixin, PreTrainedModel

from tests.hf_compat.generate_calls import DIFFER, REFUSED, compare, report
from vllm.hf_compat.call.arguments import HARMLESS
from vllm.hf_compat.call.arguments import HONOURED as HONOURED_ARGUMENTS
from vllm.hf_compat.call.arguments import REFUSED as REFUSED_ARGUMENTS
from vllm.hf_compat.call.support import (
    BEAM_FIELDS,
    CHOOSE_A_MODE,
    COMPUTING_FIELDS,
    HARMLESS_FIELDS,
    HONOURED_ELSEWHERE,
    LOGITS_FIELDS,
    REFUSED_FIELDS,
    SAMPLING_FIELDS,
)

if TYPE_CHECKING:
    from vllm import LLM

# What Transformers answers and hf_compat refuses by name, by what the calls have in common.
ONLY_REFUSED_HERE = {
    "use_cache": 7,
    "cache_implementation": 2,
    "prefill_chunk_size": 1,
    "guidance_scale": 2,
    "prompt_lookup_num_tokens": 4,
    "stopping_criteria": 6,
    "num_return_sequences": 2,
    "eos_token_id": 2,
    "early_stopping": 1,
    "num_beams": 1,
    "top_p": 1,
    "max_new_tokens": 2,
}


def test_every_call(engine: LLM, hf_model: PreTrainedModel) -> None:
    table = compare(engine, hf_model, [1, 489, 9, 14, 9, 14, 11, 9])
    assert len(table) > 600
    kinds = {name: kind for name, (kind, _, _) in table.items()}
    assert DIFFER not in kinds.values(), report(table)
    refused = [name for name, kind in kinds.items() if kind == REFUSED]
    counts = dict.fromkeys(ONLY_REFUSED_HERE, 0)
    for name in refused:
        counts[
            next(
                field for field in ("prompt_lookup_num_tokens", *ONLY_REFUSED_HERE) if field in name
            )
        ] += 1
    assert counts == ONLY_REFUSED_HERE, report(table)


def test_every_field_of_a_configuration_is_in_one_table() -> None:
    """One that a release adds is in none."""
    tables: list[Any] = [
        LOGITS_FIELDS,
        SAMPLING_FIELDS,
        BEAM_FIELDS,
        REFUSED_FIELDS,
        COMPUTING_FIELDS,
        CHOOSE_A_MODE,
        HONOURED_ELSEWHERE,
        HARMLESS_FIELDS,
    ]
    listed = [name for table in tables for name in table]
    assert sorted(listed) == sorted(vars(GenerationConfig()))


def test_every_keyword_of_generate_is_in_one_table() -> None:
    """Those of its signature, and those that it takes out of the others by name."""
    keywords = {*inspect.signature(GenerationMixin.generate).parameters} - {"self", "kwargs"}
    source = inspect.getsource(GenerationMixin.generate)
    source += inspect.getsource(GenerationMixin._extract_generation_mode_kwargs)
    keywords |= {part.split('"')[1] for part in source.split("kwargs.pop(")[1:] if part[0] == '"'}
    assert {"tokenizer", "assistant_tokenizer", "trust_remote_code"} <= keywords
    listed = [*HONOURED_ARGUMENTS, *HARMLESS, *REFUSED_ARGUMENTS]
    assert len(set(listed)) == len(listed)
    assert keywords <= set(listed)
