"""Objects of Transformers' processor classes that a caller made are called as they are."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import torch
from transformers import GenerationConfig, PreTrainedModel
from transformers.generation import LogitsProcessor
from transformers.generation import logits_process as hf

from tests.hf_compat.test_calls import hf_rows
from tests.hf_compat.test_parity import as_prompts
from vllm.hf_compat.call.generate_call import GenerateCall

if TYPE_CHECKING:
    from vllm import LLM

NEW_TOKENS = 10
EOS = 2
ODD = list(range(3, 4096, 2))


@dataclass
class Case:
    """A processor of the caller's.

    Attributes:
        make: returns a fresh object for a prompt of ids int64 [1, prompt_len].
        changes: whether it changes scores.
        prompt_len: of the prompt that it is for; None takes all of it.
    """

    make: Callable[[torch.Tensor, PreTrainedModel], LogitsProcessor]
    changes: bool = True
    prompt_len: int | None = None


def whisper(prompt: torch.Tensor) -> LogitsProcessor:
    config = GenerationConfig(no_timestamps_token_id=3000, eos_token_id=EOS)
    return hf.WhisperTimeStampLogitsProcessor(config, prompt.shape[1] + 2)


def ids_of_its_own(prompt: torch.Tensor) -> torch.Tensor:
    return torch.tensor([[*ODD, *prompt[0, :2].tolist()]])


CASES: dict[str, Case] = {
    "MinLength": Case(lambda p, m: hf.MinLengthLogitsProcessor(p.shape[1] + 9, [EOS, *ODD])),
    "MinNewTokens": Case(
        lambda p, m: hf.MinNewTokensLengthLogitsProcessor(0, 9, ODD), prompt_len=1
    ),
    "MinNewTokens, skipping": Case(
        lambda p, m: hf.MinNewTokensLengthLogitsProcessor(p.shape[1] + 4, 5, ODD)
    ),
    "Temperature": Case(lambda p, m: hf.TemperatureLogitsWarper(2.5)),
    "RepetitionPenalty": Case(lambda p, m: hf.RepetitionPenaltyLogitsProcessor(5.0)),
    "RepetitionPenalty, of new tokens": Case(
        lambda p, m: hf.RepetitionPenaltyLogitsProcessor(3.0, prompt_ignore_length=p.shape[1])
    ),
    "EncoderRepetitionPenalty": Case(
        lambda p, m: hf.EncoderRepetitionPenaltyLogitsProcessor(4.0, ids_of_its_own(p))
    ),
    "TopP": Case(lambda p, m: hf.TopPLogitsWarper(0.3, filter_value=-1.0)),
    "TopK": Case(lambda p, m: hf.TopKLogitsWarper(3, filter_value=-2.0)),
    "TopH": Case(lambda p, m: hf.TopHLogitsWarper(0.2, filter_value=-5.0)),
    "MinP": Case(lambda p, m: hf.MinPLogitsWarper(0.5, filter_value=-1.0)),
    "Typical": Case(lambda p, m: hf.TypicalLogitsWarper(0.3, filter_value=-1.0)),
    "Epsilon": Case(lambda p, m: hf.EpsilonLogitsWarper(0.2, filter_value=-1.0)),
    "Eta": Case(lambda p, m: hf.EtaLogitsWarper(0.2, filter_value=-1.0)),
    "NoRepeatNGram": Case(lambda p, m: hf.NoRepeatNGramLogitsProcessor(1)),
    "EncoderNoRepeatNGram": Case(
        lambda p, m: hf.EncoderNoRepeatNGramLogitsProcessor(1, ids_of_its_own(p))
    ),
    "SequenceBias": Case(lambda p, m: hf.SequenceBiasLogitsProcessor([[[11], 9.0], [[5], -9.0]])),
    "NoBadWords": Case(lambda p, m: hf.NoBadWordsLogitsProcessor([[i] for i in ODD])),
    "PrefixConstrained": Case(
        lambda p, m: hf.PrefixConstrainedLogitsProcessor(lambda batch_id, ids: ODD, 1)
    ),
    "ForcedBOS": Case(lambda p, m: hf.ForcedBOSTokenLogitsProcessor(77), prompt_len=1),
    "ForcedEOS": Case(lambda p, m: hf.ForcedEOSTokenLogitsProcessor(p.shape[1] + 5, EOS)),
    "InfNanRemove": Case(lambda p, m: hf.InfNanRemoveLogitsProcessor(), changes=False),
    "ExponentialDecayLengthPenalty": Case(
        lambda p, m: hf.ExponentialDecayLengthPenalty((2, 1.9), EOS, p.shape[1] + 1)
    ),
    "LogitNormalization": Case(lambda p, m: hf.LogitNormalization()),
    "SuppressTokensAtBegin": Case(
        lambda p, m: hf.SuppressTokensAtBeginLogitsProcessor(ODD, p.shape[1] + 3)
    ),
    "SuppressTokens": Case(lambda p, m: hf.SuppressTokensLogitsProcessor(ODD)),
    "WhisperTimeStamp": Case(lambda p, m: whisper(p)),
    "WhisperNoSpeechDetection": Case(lambda p, m: hf.WhisperNoSpeechDetection(3, 1), changes=False),
    "AlternatingCodebooks": Case(
        lambda p, m: hf.AlternatingCodebooksLogitsProcessor(p.shape[1], 1000, 500)
    ),
    "UnbatchedClassifierFreeGuidance": Case(
        lambda p, m: hf.UnbatchedClassifierFreeGuidanceLogitsProcessor(4.0, m, p[:, :3])
    ),
    "BarkEosPrioritizer": Case(lambda p, m: hf.BarkEosPrioritizerLogitsProcessor(EOS, 1e-6)),
    "Watermark": Case(lambda p, m: hf.WatermarkLogitsProcessor(4096, "cpu", bias=6.0)),
    "SynthIDTextWatermark": Case(
        lambda p, m: hf.SynthIDTextWatermarkLogitsProcessor(
            3, [5, 6, 7, 8], 256, 1, 64, torch.device("cpu")
        )
    ),
    "DiaEOSChannelFilter": Case(lambda p, m: hf.DiaEOSChannelFilterLogitsProcessor(1, 900)),
    "DiaEOSDelayPattern": Case(
        lambda p, m: hf.DiaEOSDelayPatternLogitsProcessor([0], EOS, p.shape[1] + 6)
    ),
}

# Classes for two rows of scores a sequence, which no single request has: their own `__call__`
# raises here as it does in `generate()`.
FOR_PAIRS: dict[str, Callable[[], LogitsProcessor]] = {
    "ClassifierFreeGuidance": lambda: hf.ClassifierFreeGuidanceLogitsProcessor(2.0),
    "DiaClassifierFreeGuidance": lambda: hf.DiaClassifierFreeGuidanceLogitsProcessor(2.0),
}

MODES: dict[str, dict[str, Any]] = {
    "sampled": {"do_sample": True, "top_k": 0, "seed": 3},
    "beams, beside HF's own": {"num_beams": 2, "repetition_penalty": 1.2, "min_new_tokens": 4},
    "guided": {"guidance_scale": 1.5},
}


def test_every_class_of_transformers_is_here(hf_model: PreTrainedModel) -> None:
    installed = {
        name
        for name, kind in vars(hf).items()
        if inspect.isclass(kind)
        and issubclass(kind, LogitsProcessor)
        and kind.__module__ == hf.__name__
    } - {"LogitsProcessor"}
    prompt = torch.tensor([[5, 6, 7]])
    objects = [case.make(prompt, hf_model) for case in CASES.values()]
    objects += [make() for make in FOR_PAIRS.values()]
    assert {type(one).__name__ for one in objects} == installed


def engine_rows(
    engine: LLM, prompts: list[list[int]], calls: list[dict[str, Any]]
) -> list[list[list[int]] | None]:
    """Return the sequences of each call, all in one batch; None where it fails."""
    frontend = engine.input_processor.hf_compat
    assert frontend is not None
    params = [frontend.to_sampling_params(GenerateCall().updated(call)) for call in calls]
    outputs = engine.generate(as_prompts(prompts), params, use_tqdm=False)
    return [
        None
        if output.outputs[0].finish_reason == "error"
        else [list(one.token_ids) for one in output.outputs]
        for output in outputs
    ]


def rows_of_hf(
    model: PreTrainedModel, prompt: list[int], own: LogitsProcessor, fields: dict[str, Any]
) -> list[list[int]] | None:
    """Return the sequences of `generate()`; None where it fails."""
    try:
        return hf_rows(model, [prompt], logits_processor=[own], **fields)
    except RuntimeError:
        return None


@pytest.mark.parametrize("fields", MODES.values(), ids=MODES)
def test_called_as_it_is(
    engine: LLM, hf_model: PreTrainedModel, prompts: list[list[int]], fields: dict[str, Any]
) -> None:
    """All in one batch."""
    fields = {"max_new_tokens": NEW_TOKENS, **fields}
    rows = {name: prompts[1][: case.prompt_len] for name, case in CASES.items()}

    def own(name: str) -> LogitsProcessor:
        return CASES[name].make(torch.tensor([rows[name]]), hf_model)

    calls = [{**fields, "logits_processor": [own(name)]} for name in CASES]
    answers = engine_rows(engine, list(rows.values()), calls)
    expected = [rows_of_hf(hf_model, rows[name], own(name), fields) for name in CASES]
    assert sum(of_hf is None for of_hf in expected) <= 1
    assert dict(zip(CASES, answers, strict=True)) == dict(zip(CASES, expected, strict=True))


def test_these_cases_show_something(hf_model: PreTrainedModel, prompts: list[list[int]]) -> None:
    """The test above would pass an engine that ignores a processor that changes nothing."""
    answer = hf_rows(hf_model, prompts[1:2], max_new_tokens=NEW_TOKENS)[0]
    with torch.inference_mode():
        logits = hf_model(torch.tensor([answer])).logits[0]
        for name, case in CASES.items():
            prompt = prompts[1][: case.prompt_len]
            own = case.make(torch.tensor([prompt]), hf_model)
            changed = [
                not row[None].equal(own(torch.tensor([prompt + answer[:step]]), row[None].clone()))
                for step, row in enumerate(logits)
            ]
            assert any(changed) == case.changes, name


@pytest.mark.parametrize("make", FOR_PAIRS.values(), ids=FOR_PAIRS)
def test_what_fails_in_generate(
    engine: LLM, hf_model: PreTrainedModel, make: Callable[[], LogitsProcessor]
) -> None:
    with pytest.raises(ValueError, match="batch size") as failure:
        hf_rows(hf_model, [[5, 6, 7]], logits_processor=[make()], max_new_tokens=2)
    (output,) = engine.generate(
        as_prompts([[5, 6, 7]]), use_tqdm=False, logits_processor=[make()], max_new_tokens=2
    )
    assert output.outputs[0].finish_reason == "error"
    assert output.outputs[0].stop_reason == f"{failure.type.__name__}: {failure.value}"


def test_a_class_of_the_callers_is_no_class_of_hf(
    engine: LLM, hf_model: PreTrainedModel, prompts: list[list[int]]
) -> None:
    """One that inherits from HF's, and is called by its own rules."""

    class Weaker(hf.RepetitionPenaltyLogitsProcessor):
        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            return super().__call__(input_ids[:, -2:], scores)

    fields = {"max_new_tokens": NEW_TOKENS}
    expected = [rows_of_hf(hf_model, prompt, Weaker(9.0), fields) for prompt in prompts[:4]]
    calls = [{**fields, "logits_processor": [Weaker(9.0)]}] * 4
    assert engine_rows(engine, prompts[:4], calls) == expected
    of_hf = hf.RepetitionPenaltyLogitsProcessor(9.0)
    assert expected != [rows_of_hf(hf_model, prompt, of_hf, fields) for prompt in prompts[:4]]
