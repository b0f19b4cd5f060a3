"""Lengths, defaults and the stopping rule are those of `generate()`."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from tests.engines import MODEL
from tests.hf_compat.test_parity import as_prompts, token_ids
from tests.reference import generate, prompt_ids
from vllm.config import ModelConfig
from vllm.exceptions import VLLMValidationError
from vllm.hf_compat.call.generation_config import load_generation_config
from vllm.hf_compat.call.request import EXTRA_ARGS_KEY, HFRequest
from vllm.hf_compat.frontend import Frontend
from vllm.hf_compat.server.body import BODY_KEY
from vllm.sampling_params import SamplingParams

if TYPE_CHECKING:
    from vllm import LLM

pytestmark = pytest.mark.fast

MAX_POSITIONS = 64


@pytest.fixture(scope="module")
def small_model() -> PreTrainedModel:
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=MAX_POSITIONS,
    )
    torch.manual_seed(0)
    return LlamaForCausalLM(config).eval()


def frontend_of(model: PreTrainedModel, max_model_len: int = 4096) -> Frontend:
    """Return the `Frontend` for a model in memory."""
    return Frontend(
        model.generation_config,
        model.config,
        max_model_len=max_model_len,
        vocab_size=model.config.vocab_size,
    )


def optional(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


config_fields = st.fixed_dictionaries(
    {},
    optional={
        "max_length": optional(st.integers(1, 40)),
        "max_new_tokens": optional(st.integers(1, 30)),
        "repetition_penalty": optional(st.sampled_from([0.5, 1.0, 1.1, 2.0])),
        "eos_token_id": optional(
            st.integers(0, 63) | st.lists(st.integers(0, 63), min_size=1, max_size=40)
        ),
        "do_sample": optional(st.just(False)),
        "top_k": optional(st.just(10)),
        "temperature": optional(st.just(0.7)),
    },
)


@settings(max_examples=150, deadline=None)
@given(of_model=config_fields, given_fields=optional(config_fields), prompt_len=st.integers(1, 50))
def test_merged_as_generate_merges(
    small_model: PreTrainedModel,
    of_model: dict[str, Any],
    given_fields: dict[str, Any] | None,
    prompt_len: int,
) -> None:
    """What the engine is told is what `generate()` does: its length, or its refusal."""
    small_model.generation_config = GenerationConfig(**of_model)
    config = None if given_fields is None else GenerationConfig(**given_fields)
    prompt = torch.randint(3, 64, (1, prompt_len), generator=torch.Generator().manual_seed(0))
    frontend = frontend_of(small_model)
    try:
        expected = small_model.generate(prompt, generation_config=config)[0, prompt_len:].tolist()
    except ValueError:
        with pytest.raises(VLLMValidationError, match="max_length"):
            frontend.finish(frontend.to_sampling_params(config), prompt_len)
        return
    params = frontend.to_sampling_params(config)
    frontend.finish(params, prompt_len)
    stops = {params._eos_token_id, *params.stop_token_ids} - {None}
    assert len(expected) <= params.max_tokens
    assert not stops & set(expected[:-1])
    ended_by_eos = bool(expected) and expected[-1] in stops
    assert ended_by_eos or len(expected) == params.max_tokens


@pytest.mark.parametrize("removed", [[], ["generation_config.json"]], ids=["both", "config.json"])
def test_generation_config_is_read_as_transformers_reads_it(
    tmp_path: Path, removed: list[str]
) -> None:
    """Without a file of its own it is in config.json, generation parameters of old included."""
    folder = shutil.copytree(MODEL, tmp_path / "model")
    for name in removed:
        (folder / name).unlink()
    config = json.loads((folder / "config.json").read_text())
    config |= {"eos_token_id": [7, 9], "repetition_penalty": 1.3}
    (folder / "config.json").write_text(json.dumps(config))
    hf = AutoModelForCausalLM.from_pretrained(folder).generation_config
    ours = load_generation_config(ModelConfig(model=str(folder), dtype="float32"))
    assert ours.to_dict() == hf.to_dict()
    assert (hf.eos_token_id == [7, 9]) == bool(removed)
    assert (hf.repetition_penalty == 1.3) == bool(removed)


def test_a_folder_without_a_generation_config_is_refused(tmp_path: Path) -> None:
    config = ModelConfig(model=str(MODEL), dtype="float32", generation_config=str(tmp_path))
    with pytest.raises(ValueError, match=f"neither generation_config.json nor .* in {tmp_path}:"):
        load_generation_config(config)


def test_defaults_are_greedy_and_20_tokens(
    engine: LLM, hf_model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> None:
    prompts = prompt_ids(tokenizer, 3)
    expected = [generate(hf_model, prompt, GenerationConfig()) for prompt in prompts]
    assert token_ids(engine.generate(as_prompts(prompts), use_tqdm=False)) == expected
    assert max(map(len, expected)) == 20


def test_max_length_counts_the_prompt(
    engine: LLM, hf_model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> None:
    prompts = [p for p in prompt_ids(tokenizer, 8) if len(p) < 40]
    config = GenerationConfig(max_length=50)
    expected = [generate(hf_model, prompt, config) for prompt in prompts]
    assert len({len(tokens) for tokens in expected}) > 1
    assert token_ids(engine.generate(as_prompts(prompts), config, use_tqdm=False)) == expected


def test_stops_at_hf_eos_ids_alone(
    engine: LLM, hf_model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> None:
    """The second and the fifth token of the plain answers become EOS; the tokenizer's is not."""
    prompts = prompt_ids(tokenizer, 4)
    plain = [generate(hf_model, p, GenerationConfig(max_new_tokens=12)) for p in prompts]
    config = GenerationConfig(max_new_tokens=48, eos_token_id=[plain[0][4], plain[1][1]])
    expected = [generate(hf_model, prompt, config) for prompt in prompts]
    assert any(len(tokens) < 48 for tokens in expected)
    outputs = engine.generate(as_prompts(prompts), config, use_tqdm=False)
    assert token_ids(outputs) == expected
    for output, tokens in zip(outputs, expected, strict=True):
        assert output.outputs[0].finish_reason == ("length" if len(tokens) == 48 else "stop")


def test_what_is_kept_of_parameters_is_apart(small_model: PreTrainedModel) -> None:
    """What one request's owner sets is not seen by the next; to vLLM 2 is 2.0."""
    frontend = frontend_of(small_model)

    def asked_by(penalty: float, prompt_len: int = 5, **others: Any) -> HFRequest:
        params = SamplingParams(temperature=0.7, repetition_penalty=penalty, max_tokens=9, **others)
        frontend.finish(params, prompt_len)
        request = copy.deepcopy(HFRequest.of(params))
        carried = (params.extra_args or {})[EXTRA_ARGS_KEY]
        carried["fields"]["top_k"] = 7
        return request

    first = asked_by(2.0)
    assert first.fields["repetition_penalty"] == 2.0
    assert "top_k" not in first.fields
    assert asked_by(2.0) == first
    assert isinstance(asked_by(2).fields["repetition_penalty"], float)
    assert isinstance(asked_by(3).fields["repetition_penalty"], float)
    assert asked_by(2.0, extra_args={BODY_KEY: {"typical_p": 0.5}}).fields["typical_p"] == 0.5
    other = asked_by(2.0, 6, n=2, seed=3)
    assert (other.prompt_len, other.max_length, other.seed, other.num_rows) == (6, 15, 3, 2)
    assert asked_by(2.0) == first
