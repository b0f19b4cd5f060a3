"""Everything that `generate()` takes beside a plain configuration, in the engine and in HF."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Timer
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    StoppingCriteria,
    SynthIDTextWatermarkingConfig,
)

from tests.hf_compat.test_parity import as_prompts, token_ids
from tests.reference import generate, generate_batch
from vllm import SamplingParams
from vllm.exceptions import VLLMValidationError
from vllm.hf_compat.answers import HFOutput, compute_transition_scores
from vllm.hf_compat.call.generate_call import GenerateCall

if TYPE_CHECKING:
    from vllm import LLM
    from vllm.outputs import RequestOutput

SAMPLED: dict[str, Any] = {"do_sample": True, "max_new_tokens": 40}


def hf_rows(
    model: PreTrainedModel, rows: list[list[int]], *, pad: int | None = None, **arguments: Any
) -> list[list[int]]:
    """Return the new tokens of each sequence of one HF call, without what follows its end."""
    eos = model.generation_config.eos_token_id
    return [without_padding(row, eos) for row in generate_batch(model, rows, pad=pad, **arguments)]


def without_padding(tokens: list[int], eos: int) -> list[int]:
    return tokens[: tokens.index(eos) + 1] if eos in tokens else tokens


def all_token_ids(outputs: list[RequestOutput]) -> list[list[int]]:
    return [list(one.token_ids) for output in outputs for one in output.outputs]


# --- several sequences, batches ------------------------------------------------------------------
@pytest.mark.some(2)
@pytest.mark.parametrize("fields", [{}, {"temperature": 0.8, "top_p": 0.9, "top_k": 30}], ids=str)
@pytest.mark.parametrize("count", [2, 5])
def test_num_return_sequences(
    engine: LLM,
    hf_model: PreTrainedModel,
    prompts: list[list[int]],
    fields: dict[str, Any],
    count: int,
) -> None:
    """Among others, which take their turns at other times."""
    arguments: Any = {**SAMPLED, **fields, "num_return_sequences": count}
    config = GenerationConfig(**arguments)
    outputs = engine.generate(as_prompts(prompts[:6]), [config] * 6, use_tqdm=False, seed=3)
    arguments["seed"] = 3
    for prompt, output in zip(prompts[:6], outputs, strict=True):
        assert all_token_ids([output]) == hf_rows(hf_model, [prompt], **arguments)


@pytest.mark.parametrize("count", [1, 3])
def test_a_batch_of_prompts_of_one_length(
    engine: LLM, hf_model: PreTrainedModel, prompts: list[list[int]], count: int
) -> None:
    rows = [prompt[:6] for prompt in prompts[1:9] if len(prompt) >= 6]
    arguments: dict[str, Any] = {
        **SAMPLED,
        "num_return_sequences": count,
        "repetition_penalty": 1.1,
    }
    outputs = engine.generate(as_prompts(rows), use_tqdm=False, seed=11, as_batch=True, **arguments)
    assert all_token_ids(outputs) == hf_rows(hf_model, rows, seed=11, **arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        SAMPLED,
        {"max_new_tokens": 40, "repetition_penalty": 1.3, "no_repeat_ngram_size": 3},
        {"max_length": 60, "min_length": 50},
        {**SAMPLED, "num_return_sequences": 2, "encoder_repetition_penalty": 1.4},
    ],
    ids=lambda arguments: "+".join(arguments),
)
def test_a_padded_batch(
    engine: LLM, hf_model: PreTrainedModel, prompts: list[list[int]], arguments: dict[str, Any]
) -> None:
    """HF's processors and lengths count the padding."""
    rows = [prompt[: 8 + 3 * i] for i, prompt in enumerate(prompts[0:16:4])]
    pad = engine.get_tokenizer().pad_token_id
    outputs = engine.generate(as_prompts(rows), use_tqdm=False, seed=4, as_batch=True, **arguments)
    expected = hf_rows(hf_model, rows, pad=pad or 0, seed=4, **arguments)
    assert all_token_ids(outputs) == expected


# --- callbacks -----------------------------------------------------------------------------------
class OnlyEvenTokens(LogitsProcessor):
    """Forbids odd tokens, at every other step: it counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls % 2 == 0:
            scores = scores.clone()
            scores[:, 1::2] = -torch.inf
        return scores


def depends_on_the_text(batch_id: int, input_ids: torch.Tensor) -> list[int]:
    assert batch_id == 0
    return [i for i in range(4096) if i % 7 != int(input_ids[-1]) % 7]


CALLBACKS: dict[str, Any] = {
    "stateful": lambda: {"logits_processor": [OnlyEvenTokens()]},
    "prefix": lambda: {"prefix_allowed_tokens_fn": depends_on_the_text},
    "both, sampled": lambda: {
        "logits_processor": [OnlyEvenTokens()],
        "prefix_allowed_tokens_fn": depends_on_the_text,
        "do_sample": True,
        "seed": 5,
        "repetition_penalty": 1.2,
        "top_k": 20,
    },
    "SynthID": lambda: {
        "watermarking_config": SynthIDTextWatermarkingConfig(
            keys=[654, 400, 836, 123, 340, 443, 597], ngram_len=4
        ),
        "do_sample": True,
        "seed": 6,
    },
}


@pytest.mark.parametrize("make", CALLBACKS.values(), ids=CALLBACKS)
def test_processors_of_the_caller(
    engine: LLM, hf_model: PreTrainedModel, prompts: list[list[int]], make: Any
) -> None:
    """The long prompts come in chunks, between which a processor must not be called."""
    expected = [hf_rows(hf_model, [p], max_new_tokens=24, **make())[0] for p in prompts[:6]]
    outputs = engine.generate(as_prompts(prompts[:6]), use_tqdm=False, max_new_tokens=24, **make())
    assert token_ids(outputs) == expected


class FailsAtTheThird(LogitsProcessor):
    """Raises where the answer has two tokens."""

    def __init__(self, prompt_len: int) -> None:
        self.prompt_len = prompt_len

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if input_ids.shape[1] == self.prompt_len + 2:
            raise KeyError("no such thing")
        return scores


@pytest.mark.parametrize("num_beams", [1, 2])
def test_a_failing_processor_ends_its_request_alone(
    engine: LLM, hf_model: PreTrainedModel, prompts: list[list[int]], num_beams: int
) -> None:
    frontend = engine.input_processor.hf_compat
    assert frontend is not None
    plain = GenerateCall.of(GenerationConfig(max_new_tokens=16))
    failing = plain.updated(
        {"logits_processor": [FailsAtTheThird(len(prompts[1]))], "num_beams": num_beams}
    )
    params = [frontend.to_sampling_params(call) for call in (plain, failing, plain)]
    first, second, third = engine.generate(as_prompts(prompts[:3]), params, use_tqdm=False)
    assert second.outputs[0].finish_reason == "error"
    assert second.outputs[0].stop_reason == "KeyError: 'no such thing'"
    config = GenerationConfig(max_new_tokens=16)
    expected = [generate(hf_model, p, config) for p in (prompts[0], prompts[2])]
    assert token_ids([first, third]) == expected


# --- stopping ------------------------------------------------------------------------------------
class TwoLines(StoppingCriteria):
    """Ends after the second line break token beyond the prompt of one request."""

    def __init__(self, newlines: set[int]) -> None:
        self.newlines = newlines
        self.seen = 0

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        self.seen += int(input_ids[0, -1]) in self.newlines
        return torch.tensor([self.seen >= 2])


@pytest.mark.some(2)
@pytest.mark.parametrize("stop_strings", ["self", ["\n\n", "(s", "ret"], [" i", "):\n"]], ids=repr)
def test_stop_strings(
    engine: LLM,
    hf_model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: list[list[int]],
    stop_strings: str | list[str],
) -> None:
    """Found across prompt, answer and token borders, as HF's vocabulary tables find them."""
    prompts = prompts[:16]
    expected = [
        hf_rows(hf_model, [p], max_new_tokens=48, stop_strings=stop_strings, tokenizer=tokenizer)[0]
        for p in prompts
    ]
    outputs = engine.generate(
        as_prompts(prompts), use_tqdm=False, max_new_tokens=48, stop_strings=stop_strings
    )
    assert token_ids(outputs) == expected
    stopped = [output.outputs[0] for output in outputs if len(output.outputs[0].token_ids) < 48]
    assert stopped
    assert all(one.finish_reason == "stop" for one in stopped)
    for output in outputs:
        one = output.outputs[0]
        assert one.text == tokenizer.decode(one.token_ids, skip_special_tokens=True)


def test_custom_stopping_criteria(
    engine: LLM,
    hf_model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: list[list[int]],
) -> None:
    newlines = {i for i in range(len(tokenizer)) if "\n" in tokenizer.decode([i])}
    for prompt in prompts[:4]:
        criteria = [TwoLines(newlines)]
        expected = hf_rows(hf_model, [prompt], max_new_tokens=64, stopping_criteria=criteria)
        outputs = engine.generate(
            as_prompts([prompt]),
            use_tqdm=False,
            max_new_tokens=64,
            stopping_criteria=[TwoLines(newlines)],
        )
        assert token_ids(outputs) == expected


class Fails(StoppingCriteria):
    """Raises at once."""

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        raise KeyError("no such thing")


def test_a_failing_criterion_ends_its_request_alone(
    engine: LLM, hf_model: PreTrainedModel, prompts: list[list[int]]
) -> None:
    frontend = engine.input_processor.hf_compat
    assert frontend is not None
    plain = GenerateCall.of(GenerationConfig(max_new_tokens=16))
    failing = plain.updated({"stopping_criteria": [Fails()]})
    params = [frontend.to_sampling_params(call) for call in (plain, failing)]
    first, second = engine.generate(as_prompts(prompts[:2]), params, use_tqdm=False)
    assert second.outputs[0].finish_reason == "error"
    assert len(second.outputs[0].token_ids) == 1
    assert second.outputs[0].stop_reason == "Fails failed: KeyError: 'no such thing'"
    assert token_ids([first]) == [
        generate(hf_model, prompts[0], GenerationConfig(max_new_tokens=16))
    ]


def test_max_time(engine: LLM, prompts: list[list[int]]) -> None:
    start = time.perf_counter()
    outputs = engine.generate(
        as_prompts(prompts[:2]), use_tqdm=False, max_time=0.5, max_new_tokens=900, eos_token_id=-1
    )
    elapsed = time.perf_counter() - start
    assert all(output.outputs[0].stop_reason == "max_time" for output in outputs)
    assert all(0 < len(output.outputs[0].token_ids) < 900 for output in outputs)
    assert elapsed >= 0.5


# --- the call itself -----------------------------------------------------------------------------
def test_keyword_arguments_complete_a_configuration(
    engine: LLM, hf_model: PreTrainedModel, prompts: list[list[int]]
) -> None:
    config = GenerationConfig(max_new_tokens=30, repetition_penalty=1.3)
    expected = [
        hf_rows(hf_model, [p], generation_config=config, no_repeat_ngram_size=2)[0]
        for p in prompts[:3]
    ]
    outputs = engine.generate(
        as_prompts(prompts[:3]), config, use_tqdm=False, no_repeat_ngram_size=2
    )
    assert token_ids(outputs) == expected
    assert config.no_repeat_ngram_size is None


@pytest.mark.parametrize(
    "changes",
    [
        {"max_tokens": 7},
        {"max_tokens": 9, "repetition_penalty": 1.3},
        {"max_tokens": 12, "temperature": 1.5, "top_k": 5, "top_p": 0.9, "seed": 3},
        {"temperature": 0.9, "min_p": 0.1, "seed": 1},
    ],
    ids=str,
)
def test_default_parameters_that_are_changed(engine: LLM, changes: dict[str, Any]) -> None:
    """They say what the model's defaults are, and what is set counts."""
    params = engine.get_default_sampling_params()
    assert params.temperature == 0.0
    for name, value in changes.items():
        setattr(params, name, value)
    (ours,) = engine.generate("class A:", params, use_tqdm=False)
    fields = {"max_new_tokens" if k == "max_tokens" else k: v for k, v in changes.items()}
    fields["do_sample"] = "temperature" in changes
    (expected,) = engine.generate("class A:", use_tqdm=False, **fields)
    assert ours.outputs[0].token_ids == expected.outputs[0].token_ids


@contextmanager
def interrupt() -> Iterator[None]:
    """Press Ctrl-C after 0.7 seconds, which a process that a shell began in the background ignores
    unless it is told not to.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = Timer(0.7, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        yield
    finally:
        timer.join()
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_call_that_fails_leaves_nothing_behind(engine: LLM, interrupted: bool) -> None:
    """The next one answers its own prompts alone."""
    if interrupted:
        with pytest.raises(KeyboardInterrupt), interrupt():
            engine.generate(["a"] * 4, max_new_tokens=900, min_new_tokens=900, use_tqdm=False)
    else:
        # It fails while it is packed for the engine's process, which the first has reached by then.
        params = SamplingParams(extra_args={"mine": object()})
        with pytest.raises(TypeError, match="object"):
            engine.generate(["a", "b"], [SamplingParams(max_tokens=2), params], use_tqdm=False)
    assert not engine.llm_engine.has_unfinished_requests()
    assert len(engine.generate("a", max_new_tokens=3, use_tqdm=False)) == 1


@pytest.mark.parametrize(
    ("token_ids", "kind"), [([5, True], "bool"), ([np.int64(5)], "int64"), ([5.0], "float")]
)
def test_prompts_that_no_message_carries(engine: LLM, token_ids: list[Any], kind: str) -> None:
    with pytest.raises(VLLMValidationError, match=f"prompt_token_ids has elements of type {kind}:"):
        engine.generate({"prompt_token_ids": token_ids}, use_tqdm=False)


@pytest.mark.parametrize("fields", [{}, SAMPLED | {"seed": 3}, {"num_beams": 3}], ids=str)
def test_chats_take_them_too(
    engine: LLM,
    hf_model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    fields: dict[str, Any],
) -> None:
    """The bundled model has no template, so each message is its text."""
    template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    texts = ["def f(x):", "import os\n"]
    chats: list[Any] = [[{"role": "user", "content": text}] for text in texts]
    fields = {"max_new_tokens": 12, "repetition_penalty": 1.2, **fields}
    outputs = engine.chat(chats, chat_template=template, use_tqdm=False, **fields)
    rows = [
        tokenizer.apply_chat_template(one, chat_template=template)["input_ids"] for one in chats
    ]
    expected = [hf_rows(hf_model, [row], **fields)[0] for row in rows]
    assert [output.prompt_token_ids for output in outputs] == rows
    assert all_token_ids(outputs) == expected
    with pytest.raises(VLLMValidationError, match="as_batch needs prompts of text or token ids"):
        engine.chat(chats, chat_template=template, use_tqdm=False, as_batch=True)


def test_prompt_lookup_is_greedy_search(
    engine: LLM, hf_model: PreTrainedModel, prompts: list[list[int]]
) -> None:
    config = GenerationConfig(max_new_tokens=40, prompt_lookup_num_tokens=4, repetition_penalty=1.1)
    outputs = engine.generate(as_prompts(prompts[:4]), config, use_tqdm=False)
    assert token_ids(outputs) == [generate(hf_model, p, config) for p in prompts[:4]]


# --- scores and logits ---------------------------------------------------------------------------
@pytest.mark.parametrize(
    "fields",
    [
        {"repetition_penalty": 1.2},
        {"do_sample": True, "top_k": 10, "temperature": 0.7, "seed": 2},
        {"do_sample": True, "num_return_sequences": 3, "seed": 8},
        {"num_beams": 3, "num_return_sequences": 2, "no_repeat_ngram_size": 3},
        {},
    ],
    ids=str,
)
def test_scores_and_logits(
    engine: LLM, hf_model: PreTrainedModel, prompts: list[list[int]], fields: dict[str, Any]
) -> None:
    """What `generate(return_dict_in_generate=True)` returns, and the transition scores of it."""
    prompt = prompts[4]
    arguments = {"max_new_tokens": 12, "output_scores": True, "output_logits": True, **fields}
    outputs = engine.generate(as_prompts([prompt]), use_tqdm=False, **arguments)[0].outputs
    torch.manual_seed(arguments.pop("seed", 0))
    with torch.inference_mode():
        expected = hf_model.generate(
            torch.tensor([prompt]), return_dict_in_generate=True, **arguments
        )
        transitions = hf_model.compute_transition_scores(
            expected.sequences, expected.scores, getattr(expected, "beam_indices", None)
        )
    for i, output in enumerate(outputs):
        tokens = list(output.token_ids)
        assert expected.sequences[i, len(prompt) :][: len(tokens)].tolist() == tokens
        paths = getattr(expected, "beam_indices", None)
        rows = [i] * len(tokens) if paths is None else paths[i, : len(tokens)].tolist()
        assert isinstance(output, HFOutput)
        for values, steps in ((output.scores, expected.scores), (output.logits, expected.logits)):
            of_hf = torch.stack([step[row] for step, row in zip(steps, rows, strict=False)])
            assert values is not None
            torch.testing.assert_close(torch.from_numpy(values), of_hf, atol=2e-4, rtol=1e-4)
        torch.testing.assert_close(
            torch.from_numpy(compute_transition_scores(output)),
            transitions[i, : len(tokens)],
            atol=2e-4,
            rtol=1e-4,
        )


def test_transition_scores_without_scores(engine: LLM, prompts: list[list[int]]) -> None:
    output = engine.generate(as_prompts(prompts[:1]), use_tqdm=False, max_new_tokens=2)[0]
    with pytest.raises(ValueError, match="set output_scores=True"):
        compute_transition_scores(output.outputs[0])
