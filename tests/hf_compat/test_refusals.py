"""What hf_compat cannot answer like Hugging Face is refused, in one sentence, before it runs."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from transformers import GenerationConfig, PreTrainedModel

from tests.engines import MODEL
from vllm import LLM, SamplingParams
from vllm.exceptions import VLLMValidationError
from vllm.hf_compat.frontend import accept_params
from vllm.sampling_params import BeamSearchParams

pytestmark = pytest.mark.fast

PROMPT = {"prompt_token_ids": [5, 6, 7]}

UNSUPPORTED: list[dict[str, Any]] = [
    {"prompt_lookup_num_tokens": 3, "do_sample": True},
    {"penalty_alpha": 0.6, "top_k": 4},
    {"token_healing": True},
    {"output_attentions": True, "return_dict_in_generate": True},
]

# What Transformers refuses when it builds its processors, or fails on at a later step.
INVALID: list[tuple[dict[str, Any], str]] = [
    ({"repetition_penalty": 0.0}, "strictly positive float"),
    ({"repetition_penalty": -1.0}, "strictly positive float"),
    ({"repetition_penalty": 2}, "strictly positive float"),
    ({"do_sample": True, "temperature": 0.0}, "strictly positive float"),
    ({"do_sample": True, "temperature": -1.0}, "strictly positive float"),
    ({"do_sample": True, "top_k": -1}, "strictly positive integer"),
    ({"do_sample": True, "top_p": -0.5}, "float > 0 and < 1"),
    ({"do_sample": True, "min_p": 2.0}, r"\[0, 1\]"),
    ({"do_sample": True, "top_h": 2.0}, r"range \(0, 1\]"),
    ({"bad_words_ids": [[]]}, r"Transformers fails on .'bad_words_ids': \[\[\]\]"),
    ({"bad_words_ids": [[9999]]}, "bad_words_ids names token 9999, but .* 0 to 4095"),
    ({"sequence_bias": [[[5, 9999], 1.0]]}, "sequence_bias names token 9999"),
    ({"forced_eos_token_id": 4096}, "forced_eos_token_id names token 4096"),
    ({"forced_bos_token_id": -1}, "forced_bos_token_id names token -1"),
    ({"no_repeat_ngram_size": 2.5}, "ngram_size"),
    ({"stop_strings": []}, r"fails on stop_strings=\[\]: Stop string preprocessing"),
    ({"stop_strings": ["\ud800"]}, "fails on stop_strings=.*surrogates not allowed"),
]


@pytest.mark.parametrize("fields", UNSUPPORTED, ids=lambda fields: "+".join(fields))
def test_unsupported_fields(engine: LLM, fields: dict[str, Any]) -> None:
    with pytest.raises(VLLMValidationError, match=r"hf_compat (does not reproduce|reproduces)"):
        engine.generate(PROMPT, GenerationConfig(max_new_tokens=4, **fields), use_tqdm=False)


@pytest.mark.parametrize(("fields", "reason"), INVALID, ids=lambda value: str(value)[:60])
def test_what_hf_refuses(engine: LLM, fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(VLLMValidationError, match=reason):
        engine.generate(PROMPT, GenerationConfig(max_new_tokens=4, **fields), use_tqdm=False)


@pytest.mark.parametrize("tensors", [None, "pt", "np"])
def test_what_a_tokenizer_returns(engine: LLM, tensors: str | None) -> None:
    """Its keys are no prompts."""
    tokenizer = engine.get_tokenizer()
    encoded = tokenizer("def f(x):", return_tensors=tensors)
    others = [encoded["input_ids"]] if tensors else []
    for prompts in (encoded, dict(encoded), [encoded], *others):
        with pytest.raises(VLLMValidationError, match=r"give the text, or .*prompt_token_ids"):
            engine.generate(prompts, max_new_tokens=2, use_tqdm=False)


def test_parameters_that_are_a_dict(engine: LLM) -> None:
    with pytest.raises(VLLMValidationError, match=r"give a transformers\.GenerationConfig"):
        engine.generate(PROMPT, {"max_new_tokens": 4}, use_tqdm=False)


def test_prompt_as_long_as_max_length(engine: LLM) -> None:
    with pytest.raises(VLLMValidationError, match="max_length=3 counts them"):
        engine.generate(PROMPT, GenerationConfig(max_length=3), use_tqdm=False)


def test_longer_than_the_context_window(engine: LLM) -> None:
    with pytest.raises(VLLMValidationError, match="exceed max_model_len=1024"):
        engine.generate(PROMPT, GenerationConfig(max_new_tokens=1022), use_tqdm=False)


# Arguments of `generate()` beside the configuration.
BAD_CALLS: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": 3}, "'max_tokens' that hf_compat honours: did you mean max_new_tokens"),
    ({"repetition_penality": 1.2}, "'repetition_penality' .*: did you mean repetition_penalty"),
    ({"xyz": 3}, "'xyz' .*: give the fields of a GenerationConfig, or seed, as_batch"),
    ({"seed": "7"}, "seed='7' is no whole number"),
    ({"seed": [1]}, r"seed=\[1\] is no whole number"),
    ({"seed": 1 << 70}, "beyond what torch.manual_seed takes"),
    ({"max_new_tokens": "5"}, "max_new_tokens='5' is text: give a number"),
    ({"repetition_penalty": "1.2"}, "repetition_penalty='1.2' is text: give a number"),
    ({"sequence_bias": [1]}, r"fails on .'sequence_bias': \[1\]. with TypeError"),
    ({"streamer": object()}, "does not honour generate...s argument streamer: tokens"),
    ({"temperature": 0.0, "do_sample": True}, "strictly positive float"),
    ({"num_return_sequences": 2}, "Greedy methods"),
    ({"prefix_allowed_tokens_fn": threading.Lock().acquire}, "cannot be pickled"),
]


def name_of(value: dict[str, Any] | str) -> str:
    return value[:40] if isinstance(value, str) else "+".join(value)


@pytest.mark.parametrize(("arguments", "reason"), BAD_CALLS, ids=name_of)
def test_bad_calls(engine: LLM, arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises(VLLMValidationError, match=reason):
        engine.generate(PROMPT, use_tqdm=False, **arguments)


def test_call_arguments_beside_sampling_params(engine: LLM) -> None:
    with pytest.raises(VLLMValidationError, match="complete a GenerationConfig"):
        engine.generate(PROMPT, SamplingParams(), use_tqdm=False, top_k=3)


def test_what_an_engine_without_hf_compat_would_half_honour(engine: LLM) -> None:
    """Resolved parameters of another engine, and what its requests carry, here with a pickle."""
    assert engine.input_processor.hf_compat is not None
    resolved = engine.input_processor.hf_compat.to_sampling_params(GenerationConfig())
    carried = SamplingParams(extra_args={"hf_compat": {"num_beams": 2, "criteria": b"gA=="}})
    for params, reason in ((resolved, "needs hf_compat"), ([carried], "writes for itself")):
        with pytest.raises(VLLMValidationError, match=reason):
            accept_params(None, params)
    plain = SamplingParams(extra_args={"of_a_plugin": 1})
    assert accept_params(None, plain) is plain


def test_beam_search(engine: LLM) -> None:
    with pytest.raises(VLLMValidationError, match="beam search"):
        engine.beam_search([PROMPT], BeamSearchParams(beam_width=2, max_tokens=4))


def test_one_bad_request_of_a_list_loses_nothing(engine: LLM) -> None:
    """The good request before it is not left running, and the engine goes on."""
    good, bad = GenerationConfig(max_new_tokens=4), GenerationConfig(max_length=2)
    with pytest.raises(VLLMValidationError):
        engine.generate([PROMPT, PROMPT], [good, bad], use_tqdm=False)
    assert len(engine.generate(PROMPT, good, use_tqdm=False)) == 1


EXCLUDED_BY_EXACT: list[tuple[dict[str, Any], str]] = [
    ({"enable_prefix_caching": True}, "enable_prefix_caching=True, since prompts"),
    ({"enable_chunked_prefill": True}, "enable_chunked_prefill=True"),
    ({"tensor_parallel_size": 2}, "tensor_parallel_size=2, since sums"),
    ({"quantization": "fp8"}, "quantization='fp8', since Transformers"),
    ({"kv_cache_dtype": "fp8"}, "kv_cache_dtype='fp8'"),
    ({"load_format": "dummy"}, "load_format='dummy'"),
    ({"model_loader_extra_config": {"threads": 2}}, "model_loader_extra_config="),
    ({"enable_return_routed_experts": True}, "enable_return_routed_experts=True, since experts"),
    ({"cpu_offload_gb": 1}, "cpu_offload_gb=1, since Transformers"),
    ({"speculative_config": {"method": "ngram", "num_speculative_tokens": 2}}, "speculative"),
    ({"kv_offloading_size": 1}, "kv_offloading_size, since it keeps"),
    ({"disable_hybrid_kv_cache_manager": True}, "disable_hybrid_kv_cache_manager=True, since st"),
    ({"mamba_cache_dtype": "float32"}, "mamba_cache_dtype='float32', since states"),
    ({"mamba_ssm_cache_dtype": "float16"}, "mamba_ssm_cache_dtype='float16', since states"),
    ({"mamba_block_size": 64}, "mamba_block_size=64, since states"),
    ({"mamba_cache_mode": "align"}, "mamba_cache_mode='align', since states"),
]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"split_qkv": "always"}, "split_qkv='always' is not a value"),
        ({"deterministic": True}, "fewer than float32 has"),
        ({"deterministic": "batch"}, "needs an NVIDIA GPU"),
        *(
            ({"hf_compat": "exact", **arguments}, 'hf_compat="exact" does not go with ' + sentence)
            for arguments, sentence in EXCLUDED_BY_EXACT
        ),
        ({"hf_compat": "yes"}, "hf_compat='yes' is not a value"),
        ({"hf_compat": 1.5}, "hf_compat=1.5 is not a value"),
        ({"hf_compat": True, "generation_config": "vllm"}, "leave one of the two out"),
        (
            {"hf_compat": True, "override_generation_config": {"token_healing": True}},
            "token_healing=True: it replaces.*--override-generation-config",
        ),
        (
            {
                "hf_compat": True,
                "speculative_config": {
                    "method": "ngram",
                    "num_speculative_tokens": 2,
                    "rejection_sample_method": "synthetic",
                    "synthetic_acceptance_rates": [0.5, 0.5],
                },
            },
            "accepted unseen",
        ),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else "",
)
def test_engine_arguments(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        LLM(str(MODEL), dtype="float32", **arguments)


def test_exact_mode_beside_batch_invariance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    with pytest.raises(ValueError, match="does not go with VLLM_BATCH_INVARIANT=1, since that pu"):
        LLM(str(MODEL), dtype="float32", hf_compat="exact")


def test_a_logit_bias_that_is_no_number(engine: LLM) -> None:
    """All logits of a request with it may become NaN, of which a token would be chosen."""
    params = SamplingParams(max_tokens=2, logit_bias={7: 1.0, 5: float("nan")})
    with pytest.raises(VLLMValidationError, match=r"^logit_bias of token 5 is nan, which is no n"):
        engine.generate(PROMPT, params, use_tqdm=False)


@pytest.mark.parametrize("token_id", [4096, -1, 1 << 40])
def test_token_ids_that_the_model_does_not_have(
    engine: LLM, hf_model: PreTrainedModel, token_id: int
) -> None:
    """Transformers fails on them without a word of which."""
    with pytest.raises(IndexError):
        hf_model.generate(torch.tensor([[5, token_id]]), max_new_tokens=2)
    with pytest.raises(VLLMValidationError, match=rf"^Token id {token_id} is not in 0\.\.4095, w"):
        engine.generate({"prompt_token_ids": [5, token_id]}, max_new_tokens=2, use_tqdm=False)
