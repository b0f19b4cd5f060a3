"""The texts of answers, which `generate()` leaves to the caller's tokenizer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from tests.hf_compat.test_parity import as_prompts, token_ids
from tests.reference import generate_batch
from vllm import SamplingParams
from vllm.hf_compat.answers import detokenizer_for
from vllm.hf_compat.call.generate_call import GenerateCall
from vllm.hf_compat.call.request import HFRequest
from vllm.hf_compat.texts.whole_texts import WholeText
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.detokenizer import IncrementalDetokenizer

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


def forced(ids: list[int], max_new_tokens: int) -> dict[str, Any]:
    """Arguments of `generate()` that let an answer begin with these tokens."""
    biases = [[ids[: i + 1], 1e6 * (i + 1)] for i in range(len(ids))]
    return {"sequence_bias": biases, "max_new_tokens": max_new_tokens, "eos_token_id": -1}


@pytest.mark.parametrize("more", [{}, {"num_beams": 2}, {"stop_strings": ["never"]}], ids=str)
@pytest.mark.parametrize("text", ["€", "x€", "😀", "€€", "\ufffd"])
def test_a_text_that_ends_within_a_character(engine: LLM, text: str, more: dict[str, Any]) -> None:
    """Every length of it, as a tokenizer decodes what `generate()` returns."""
    tokenizer: Any = engine.get_tokenizer()
    ids = tokenizer(text, add_special_tokens=False).input_ids
    prompt = tokenizer("def f(").input_ids
    texts = []
    for length in range(1, len(ids) + 1):
        arguments = forced(ids[:length], length) | more
        (output,) = engine.generate(as_prompts([prompt]), use_tqdm=False, **arguments)
        answer = output.outputs[0]
        assert list(answer.token_ids) == ids[:length]
        assert answer.text == tokenizer.decode(ids[:length], skip_special_tokens=True)
        texts.append(answer.text)
    assert any(one.endswith("\ufffd") for one in texts)


def test_a_long_text_without_a_whole_character(engine: LLM) -> None:
    """More tokens than are looked at in most texts."""
    tokenizer: Any = engine.get_tokenizer()
    ids = tokenizer("a" + 40 * "\ufffd", add_special_tokens=False).input_ids
    assert len(ids) > 64
    prompt = tokenizer("def f(").input_ids
    (output,) = engine.generate(as_prompts([prompt]), use_tqdm=False, **forced(ids, len(ids)))
    answer = output.outputs[0]
    assert list(answer.token_ids) == ids
    assert answer.text == tokenizer.decode(ids)


def test_a_tokenizer_that_is_not_from_hugging_face() -> None:
    """Its ``decode`` takes the ids and whether to skip special tokens, as vLLM's protocol says."""

    class ByteTokenizer:
        def decode(self, ids: list[int], skip_special_tokens: bool = False) -> str:
            return bytes(ids).decode(errors="replace")

    class Detokenizer:
        output_token_ids: ClassVar[list[int]] = [97, 0xE2, 0x82]

        def get_next_output_text(self, finished: bool, delta: bool) -> str:
            return "a"

    inner: Any = Detokenizer()
    text = WholeText(inner, ByteTokenizer(), [98], SamplingParams())
    assert text.get_next_output_text(True, False) == "a\ufffd"


def test_a_stream_that_ends_within_a_character(engine: LLM) -> None:
    """Its parts are the text, and what vLLM's stop strings and ids leave out stays out."""
    tokenizer: Any = engine.get_tokenizer()
    ids = tokenizer("a€b", add_special_tokens=False).input_ids
    begun = ids[:3]
    cases = [
        ({"max_tokens": 3}, tokenizer.decode(begun)),
        ({"max_tokens": 9, "stop_token_ids": ids[3:4]}, tokenizer.decode(begun)),
        ({"max_tokens": 9, "stop": ["b"]}, "a€"),
    ]
    frontend = engine.input_processor.hf_compat
    assert frontend is not None
    for number, (fields, expected) in enumerate(cases):
        call = GenerateCall().updated(forced(ids, 9))
        params = frontend.to_sampling_params(call)
        for name, value in fields.items():
            setattr(params, name, value)
        params.output_kind = RequestOutputKind.DELTA
        prompt: Any = {"prompt_token_ids": tokenizer("def f(").input_ids}
        engine.llm_engine.add_request(str(number), prompt, params)
        parts = []
        while engine.llm_engine.has_unfinished_requests():
            parts += [output.outputs[0].text for output in engine.llm_engine.step()]
        assert "".join(parts) == expected


def test_padding_within_a_prompt(engine: LLM, hf_model: PreTrainedModel) -> None:
    """It is a token, as with a mask; without one Transformers hides it, which is documented."""
    tokenizer: Any = engine.get_tokenizer()
    ids = tokenizer("class Stack:\n").input_ids
    prompt = [*ids, *[tokenizer.pad_token_id] * 3, *ids[1:]]
    arguments = {"max_new_tokens": 16, "pad_token_id": tokenizer.pad_token_id}
    ours = token_ids(engine.generate(as_prompts([prompt]), use_tqdm=False, **arguments))
    row = torch.tensor([prompt])
    masked, hidden = (
        hf_model.generate(row, **mask, **arguments)[:, len(prompt) :].tolist()
        for mask in ({"attention_mask": torch.ones_like(row)}, {})
    )
    assert ours == masked != hidden


def test_parts_of_a_message_for_a_template_of_texts(engine: LLM) -> None:
    """Transformers' template prints Python's list; here the texts are joined."""
    tokenizer: Any = engine.get_tokenizer()
    template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    parts: Any = [{"type": "text", "text": text} for text in ("def f(", "x):")]
    chat: Any = [{"role": "user", "content": parts}]
    (output,) = engine.chat(chat, chat_template=template, use_tqdm=False, max_new_tokens=1)
    assert output.prompt_token_ids == tokenizer("def f(\nx):", add_special_tokens=False).input_ids
    theirs = tokenizer.apply_chat_template(chat, chat_template=template, tokenize=False)
    assert theirs == str(parts)


def test_a_sentencepiece_text_that_begins_with_a_space() -> None:
    """It has the space, which ``decode`` of the new tokens drops, and joins with the prompt."""
    model = Tokenizer(models.BPE({"▁": 0, "a": 1, "▁a": 2, "b": 3}, [("▁", "a")]))
    model.pre_tokenizer = pre_tokenizers.Metaspace()
    model.decoder = decoders.Metaspace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=model)
    params = SamplingParams()
    HFRequest().attach(params)
    prompt = tokenizer("b a").input_ids
    request: Any = SimpleNamespace(sampling_params=params, prompt_token_ids=prompt, request_id="0")
    inner = IncrementalDetokenizer.from_new_request(tokenizer, request)
    detokenizer = detokenizer_for(inner, request, tokenizer)
    detokenizer.update([2, 2], stop_terminated=False)
    text = detokenizer.get_next_output_text(finished=True, delta=False)
    assert text == " a a"
    assert tokenizer.decode([2, 2]) == "a a"
    assert tokenizer.decode(prompt) + text == tokenizer.decode([*prompt, 2, 2])
