"""A caller's criteria, processors and functions, of all kinds that `generate()` takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.generation import ConfidenceCriteria, LogitsProcessor, StoppingCriteria

from tests.hf_compat.test_parity import as_prompts
from tests.reference import equal_to_the_end, generate_batch
from vllm.exceptions import VLLMValidationError

if TYPE_CHECKING:
    from vllm import LLM

Rows = list[list[int]]
PADDING = {0, 2}
SAMPLED = {"do_sample": True, "num_return_sequences": 3, "seed": 7}
BEAMS = {"num_beams": 2}


class Says(StoppingCriteria):
    """What a function says of ids and scores."""

    def __init__(self, function: Callable[[torch.Tensor, Any], Any]) -> None:
        self.function = function

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> Any:
        return self.function(input_ids, scores)


class Counts(StoppingCriteria):
    """Ends when it was asked for the sixth time."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> Any:
        self.calls += 1
        return self.calls >= 6


class Makes(LogitsProcessor):
    """What a function makes of scores."""

    def __init__(self, function: Callable[[torch.Tensor], Any]) -> None:
        self.function = function

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> Any:
        return self.function(scores)


def compare(
    engine: LLM, model: PreTrainedModel, rows: Rows, **arguments: Any
) -> list[tuple[list[int], list[int]]]:
    """Return the engine's and HF's new tokens of each sequence, which are equal to their ends."""
    arguments = {"max_new_tokens": 10, **arguments}
    outputs = engine.generate(as_prompts(rows), use_tqdm=False, as_batch=len(rows) > 1, **arguments)
    answers = [list(one.token_ids) for output in outputs for one in output.outputs]
    expected = generate_batch(model, rows, pad=model.generation_config.pad_token_id, **arguments)
    assert len(answers) == len(expected)
    for tokens, row in zip(answers, expected, strict=True):
        assert equal_to_the_end(tokens, row, PADDING), (tokens, row)
    return list(zip(answers, expected, strict=True))


@pytest.mark.parametrize("mode", [{}, SAMPLED, BEAMS], ids=["greedy", "sampled", "beams"])
@pytest.mark.parametrize(
    "function",
    [
        lambda ids, scores: bool(ids[0, -1] % 3 == 1) if len(ids) == 1 else ids[:, -1] % 3 == 1,
        lambda ids, scores: 1 if len(ids) == 1 and ids[0, -1] % 3 == 1 else ids[:, -1] % 3 == 1,
        lambda ids, scores: ids[:, -1] % 3 == 1,
    ],
    ids=["bool", "int", "tensor"],
)
def test_what_criteria_may_return(
    engine: LLM,
    hf_model: PreTrainedModel,
    prompts: Rows,
    function: Callable[..., Any],
    mode: dict[str, Any],
) -> None:
    criteria = [Says(function)]
    pairs = compare(engine, hf_model, prompts[1:2], stopping_criteria=criteria, **mode)
    assert any(len(tokens) < 10 for tokens, _ in pairs)


def test_an_even_number_is_no_end(engine: LLM, hf_model: PreTrainedModel, prompts: Rows) -> None:
    """HF takes the last bit of a tensor of numbers."""
    criteria = [Says(lambda ids, scores: (ids[:, -1] % 3 == 1).long() * 4)]
    ((tokens, _),) = compare(engine, hf_model, prompts[1:2], stopping_criteria=criteria)
    assert len(tokens) == 10


@pytest.mark.parametrize("mode", [{}, BEAMS], ids=["greedy", "beams"])
@pytest.mark.parametrize("returns_scores", [True, False])
def test_criteria_see_scores(
    engine: LLM,
    hf_model: PreTrainedModel,
    prompts: Rows,
    returns_scores: bool,
    mode: dict[str, Any],
) -> None:
    """All of them with ``output_scores``, which HF returns in a dictionary only; else None."""
    third = Says(
        lambda ids, scores: torch.full((len(ids),), scores is not None and len(scores) >= 3)
    )
    fields = {"output_scores": True, "return_dict_in_generate": returns_scores, **mode}
    pairs = compare(engine, hf_model, prompts[1:2], stopping_criteria=[third], **fields)
    assert [len(tokens) for tokens, _ in pairs] == [3 if returns_scores else 10]


def test_criteria_read_scores(engine: LLM, hf_model: PreTrainedModel, prompts: Rows) -> None:
    fields: dict[str, Any] = {"output_scores": True, "return_dict_in_generate": True}
    unsure = Says(lambda ids, scores: scores[-1].softmax(-1).amax(-1) < 0.2)
    for criterion in (unsure, ConfidenceCriteria(0.4)):
        compare(engine, hf_model, prompts[1:2], stopping_criteria=[criterion], **fields)


@pytest.mark.parametrize("mode", [{}, BEAMS], ids=["greedy", "beams"])
def test_an_object_that_is_given_twice_is_asked_once(
    engine: LLM, hf_model: PreTrainedModel, prompts: Rows, mode: dict[str, Any]
) -> None:
    counts = Counts()
    rows = prompts[1:2]
    outputs = engine.generate(
        as_prompts(rows),
        use_tqdm=False,
        stopping_criteria=[counts, counts],
        max_new_tokens=9,
        **mode,
    )
    with torch.inference_mode():
        expected = hf_model.generate(
            torch.tensor(rows), stopping_criteria=[counts, counts], max_new_tokens=9, **mode
        )[0, len(rows[0]) :]
    assert list(outputs[0].outputs[0].token_ids) == expected.tolist()
    assert len(expected) == 6


def test_a_prefix_function_knows_the_row(
    engine: LLM, hf_model: PreTrainedModel, prompts: Rows
) -> None:
    """Of a batch, and of several sequences of a prompt; the beams of a prompt share one."""
    rows = [prompt[:5] for prompt in prompts[1:4]]
    function = {"prefix_allowed_tokens_fn": lambda row, ids: [100 + row, 200 + row, 300 + row]}
    for mode in ({}, SAMPLED):
        compare(engine, hf_model, rows, **function, **mode)
    compare(engine, hf_model, rows[:1], **function, **BEAMS)
    pairs = compare(engine, hf_model, rows[:1], **function, **SAMPLED)
    assert [{token % 100 for token in tokens} for tokens, _ in pairs] == [{0}, {1}, {2}]


@pytest.mark.parametrize("mode", [{}, SAMPLED, BEAMS], ids=["greedy", "sampled", "beams"])
def test_an_empty_stop_string_is_everywhere(
    engine: LLM,
    hf_model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Rows,
    mode: dict[str, Any],
) -> None:
    compare(engine, hf_model, prompts[1:2], stop_strings="", tokenizer=tokenizer, **mode)


def test_the_text_of_beams_has_the_stop_string(engine: LLM, prompts: Rows) -> None:
    tokenizer = engine.get_tokenizer()
    (output,) = engine.generate(
        as_prompts(prompts[1:2]),
        use_tqdm=False,
        stop_strings="n",
        num_beams=3,
        num_return_sequences=2,
        max_new_tokens=12,
    )
    for one in output.outputs:
        assert one.text == tokenizer.decode(one.token_ids, skip_special_tokens=True)
    assert "stop" in [one.finish_reason for one in output.outputs]


@pytest.mark.parametrize("mode", [{}, {"do_sample": True, "seed": 1}, BEAMS], ids=str)
@pytest.mark.parametrize(
    "function",
    [
        lambda scores: scores.half(),
        lambda scores: scores.long(),
        lambda scores: None,
        lambda scores: scores[:, :10],
        lambda scores: torch.cat([scores, scores + 9], dim=1),
        lambda scores: scores[0],
    ],
    ids=["half", "long", "none", "narrow", "wide", "flat"],
)
def test_a_processor_that_returns_no_scores_ends_its_request_alone(
    engine: LLM, prompts: Rows, function: Callable[..., Any], mode: dict[str, Any]
) -> None:
    (good,) = engine.generate(as_prompts(prompts[1:2]), use_tqdm=False, max_new_tokens=4)
    arguments = {"logits_processor": [Makes(function)], "max_new_tokens": 4, **mode}
    (bad,) = engine.generate(as_prompts(prompts[1:2]), use_tqdm=False, **arguments)
    assert bad.outputs[0].finish_reason == "error"
    assert "TypeError: Makes returned " in str(bad.outputs[0].stop_reason)
    (again,) = engine.generate(as_prompts(prompts[1:2]), use_tqdm=False, max_new_tokens=4)
    assert again.outputs[0].token_ids == good.outputs[0].token_ids


class DoesNotUnpickle(StoppingCriteria):
    def __reduce__(self) -> Any:
        return divmod, (1, 0)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"stopping_criteria": Counts()}, "stopping_criteria is a Counts: give a list"),
        ({"logits_processor": Makes(abs)}, "logits_processor is a Makes: give a list"),
        ({"stopping_criteria": [DoesNotUnpickle()]}, "cannot be unpickled .ZeroDivisionError"),
        ({"stop_strings": ["n", 3]}, "Transformers fails on stop_strings"),
        ({"generation_config": {"max_new_tokens": 3}}, "generation_config is a dict"),
        ({"max_new_tokens": float("inf")}, "no number of tokens"),
        ({"max_length": float("nan")}, "no number of tokens"),
    ],
    ids=lambda value: value if isinstance(value, str) else "+".join(value),
)
def test_refused_in_one_sentence(
    engine: LLM, prompts: Rows, arguments: dict[str, Any], reason: str
) -> None:
    with pytest.raises(VLLMValidationError, match=reason):
        engine.generate(as_prompts(prompts[1:2]), use_tqdm=False, **arguments)


def test_a_criterion_that_fails_is_named_not_the_fields(engine: LLM, prompts: Rows) -> None:
    fails = Says(lambda ids, scores: 1 // 0)
    for mode in ({}, BEAMS):
        (output,) = engine.generate(
            as_prompts(prompts[1:2]), use_tqdm=False, stopping_criteria=[fails], **mode
        )
        assert output.outputs[0].finish_reason == "error"
        assert "ZeroDivisionError" in str(output.outputs[0].stop_reason)
        assert "Transformers fails" not in str(output.outputs[0].stop_reason)


def test_a_seed_that_is_set_later_counts(engine: LLM, prompts: Rows) -> None:
    assert engine.input_processor.hf_compat is not None
    from vllm.hf_compat.call.generate_call import GenerateCall

    def params(seed: int) -> Any:
        call = GenerateCall().updated({"do_sample": True, "seed": seed, "max_new_tokens": 8})
        return engine.input_processor.hf_compat.to_sampling_params(call)

    later = params(7)
    later.seed = 8
    given = [params(7), params(8), later]
    seven, eight, changed = (
        list(output.outputs[0].token_ids)
        for output in engine.generate(as_prompts(prompts[1:2] * 3), given, use_tqdm=False)
    )
    assert changed == eight != seven
