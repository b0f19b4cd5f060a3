"""The texts of answers, which `generate()` leaves to the caller's tokenizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from transformers import PreTrainedModel

from tests.hf_compat.test_parity import as_prompts, token_ids
from tests.reference import generate_batch
from vllm import SamplingParams

if TYPE_CHECKING:
    from vllm import LLM


@pytest.mark.parametrize("count", [1, 2])
def test_the_text_has_an_eos_token_that_is_a_word(
    engine: LLM, hf_model: PreTrainedModel, count: int
) -> None:
    """As what `generate()` returns has when it is decoded; what vLLM's names ask for has not."""
    tokenizer: Any = engine.get_tokenizer()
    prompt = tokenizer("def f(").input_ids
    (greedy,) = token_ids(engine.generate(as_prompts([prompt]), max_new_tokens=12))
    eos = greedy[7 : 7 + count]
    (expected,) = generate_batch(hf_model, [prompt], max_new_tokens=12, eos_token_id=eos)
    (output,) = engine.generate(as_prompts([prompt]), max_new_tokens=12, eos_token_id=eos)
    answer = output.outputs[0]
    assert list(answer.token_ids) == expected == greedy[: len(expected)]
    assert expected[-1] in eos
    assert answer.text == tokenizer.decode(expected, skip_special_tokens=True)
    params = SamplingParams(temperature=0, max_tokens=12, stop_token_ids=eos)
    (stopped,) = engine.generate(as_prompts([prompt]), params)
    assert list(stopped.outputs[0].token_ids) == expected
    assert stopped.outputs[0].text == tokenizer.decode(expected[:-1])
