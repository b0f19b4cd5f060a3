"""Whole engines: Hugging Face's tokens in bfloat16, and split_qkv alone, on two ranks."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GenerationConfig,
    LlamaConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from tests.engines import MODEL, bundled_engine
from tests.hf_compat.test_parity import as_prompts, token_ids
from tests.longrope import use_longrope
from tests.reference import generate, prompt_ids
from tests.sizes import size
from tools.make_random_model import make_random_model
from vllm import SamplingParams

if TYPE_CHECKING:
    from vllm import LLM

NUM_PROMPTS = size(12, 64)
NUM_TOKENS = size(32, 96)


@pytest.fixture(scope="module")
def hf_bfloat16() -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.bfloat16).eval()


@pytest.fixture(scope="module")
def bfloat16_engine() -> Iterator[LLM]:
    """Prompts are computed whole: in chunks their products would have other numbers of rows.

    What cost bits would stop its start; where that is known see `test_parity_report`.
    """
    with bundled_engine(hf_compat="strict", dtype="bfloat16", max_num_batched_tokens=2048) as llm:
        yield llm


@pytest.mark.parametrize("penalty", [1.0, 1.2])
def test_tokens_of_a_batch_in_bfloat16(
    bfloat16_engine: LLM,
    hf_bfloat16: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    penalty: float,
) -> None:
    config = GenerationConfig(max_new_tokens=NUM_TOKENS, repetition_penalty=penalty)
    prompts = prompt_ids(tokenizer, NUM_PROMPTS)
    expected = [generate(hf_bfloat16, prompt, config) for prompt in prompts]
    ours = token_ids(bfloat16_engine.generate(as_prompts(prompts), config, use_tqdm=False))
    assert ours == expected


def test_logits_of_a_request_in_bfloat16(
    bfloat16_engine: LLM, hf_bfloat16: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> None:
    """The very bits, beside requests of other lengths."""
    config = GenerationConfig(max_new_tokens=12, output_logits=True)
    expect_logits(bfloat16_engine, hf_bfloat16, prompt_ids(tokenizer, 5), config)


def test_bits_after_a_preemption(
    hf_bfloat16: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> None:
    """What a request had generated comes back with its prompt: one step, and products of each."""
    sampled = {"do_sample": True, "temperature": 1.5, "output_logits": True, "max_new_tokens": 120}
    configs = [GenerationConfig(**sampled) for _ in range(12)]
    configs += [GenerationConfig(**sampled, guidance_scale=1.4) for _ in range(2)]
    with bundled_engine(
        hf_compat="strict",
        dtype="bfloat16",
        max_num_batched_tokens=2048,
        max_model_len=256,
        kv_cache_memory_bytes=1_900_000,
        disable_log_stats=False,
    ) as llm:
        prompts = [prompt[:40] for prompt in prompt_ids(tokenizer, len(configs))]
        outputs = llm.generate(as_prompts(prompts), configs, use_tqdm=False, seed=7)
        preempted = [one for one in llm.get_metrics() if one.name == "vllm:num_preemptions"]
    assert sum(one.value for one in preempted) > 0
    answered = list(zip(prompts, configs, outputs, strict=True))
    for prompt, config, output in answered[:: size(4, 1)]:
        torch.manual_seed(7)
        expected = hf_bfloat16.generate(
            torch.tensor([prompt]), config, return_dict_in_generate=True
        )
        assert list(output.outputs[0].token_ids) == expected.sequences[0, len(prompt) :].tolist()
        logits = torch.from_numpy(output.outputs[0].logits)
        assert torch.equal(logits, torch.cat(expected.logits).float())


def test_report_of_an_engine(bfloat16_engine: LLM) -> None:
    """Its workers tell, without VLLM_ALLOW_INSECURE_SERIALIZATION."""
    assert "VLLM_ALLOW_INSECURE_SERIALIZATION" not in os.environ
    report = bfloat16_engine.parity_report()
    assert report.has_hf_bits
    counts = {row.kind: row.count for row in report.rows}
    assert (counts["Attention"], counts["RowParallelLinear"], counts["RMSNorm"]) == (6, 12, 13)


@pytest.mark.some(1)
@pytest.mark.parametrize("shape", ["qwen3-30b-a3b", "bloom-560m", "falcon-7b"])
def test_models_with_operations_of_their_own(shape: str, tmp_path: Path) -> None:
    """BLOOM with ALiBi and its own activation, Falcon with one head of keys, and experts."""
    make_random_model(shape, tmp_path, num_layers=2, narrow=True)
    expect_random_prompts_logits(tmp_path, (1, 9, 130, 70), max_model_len=256)


@pytest.mark.long
def test_short_factors_of_longrope(tmp_path: Path) -> None:
    """A long Phi-3, whose longest text is left to the engine."""
    make_random_model("phi3-mini", tmp_path, num_layers=2, narrow=True)
    config = AutoConfig.from_pretrained(tmp_path)
    use_longrope(config, trained=64)
    config.save_pretrained(tmp_path)
    expect_random_prompts_logits(tmp_path, (1, 9, 52))


def expect_random_prompts_logits(folder: Path, lengths: Sequence[int], **arguments: Any) -> None:
    """Those of Transformers in bfloat16, for random prompts of some lengths in one batch."""
    from vllm import LLM

    hf = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    llm = LLM(
        str(folder),
        dtype="bfloat16",
        hf_compat=True,
        skip_tokenizer_init=True,
        enforce_eager=True,
        kv_cache_memory_bytes=1 << 26,
        **arguments,
    )
    generator = torch.Generator().manual_seed(0)
    prompts = [
        torch.randint(3, hf.config.vocab_size, (length,), generator=generator).tolist()
        for length in lengths
    ]
    config = GenerationConfig(
        do_sample=False, max_new_tokens=12, min_new_tokens=12, output_logits=True
    )
    expect_logits(llm, hf, prompts, config)
    llm.llm_engine.engine_core.shutdown()


def expect_logits(
    llm: LLM, hf: PreTrainedModel, prompts: list[list[int]], config: GenerationConfig
) -> None:
    """Those of Transformers, and so its tokens, to the last bit."""
    outputs = llm.generate(as_prompts(prompts), config, use_tqdm=False)
    for prompt, output in zip(prompts, outputs, strict=True):
        theirs = hf.generate(torch.tensor([prompt]), config, return_dict_in_generate=True)
        assert list(output.outputs[0].token_ids) == theirs.sequences[0, len(prompt) :].tolist()
        ours = torch.from_numpy(output.outputs[0].logits)
        assert torch.equal(ours, torch.cat(theirs.logits).float())


@pytest.mark.long
def test_two_ranks_share_one_key_value_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tensor parallelism with an odd vocabulary and fewer key-value heads than ranks."""
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")  # or it wants two NUMA nodes
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=128,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=32,
        intermediate_size=192,
        num_hidden_layers=2,
        vocab_size=49953,
        initializer_range=0.2,
        eos_token_id=None,
        bos_token_id=None,
    )
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    model.save_pretrained(tmp_path)
    prompts = [[7, 49952, 3, 11], [49951, 5]]
    settings = GenerationConfig(max_new_tokens=12)
    expected = [generate(model, prompt, settings) for prompt in prompts]
    from vllm import LLM

    llm = LLM(
        str(tmp_path),
        dtype="float32",
        split_qkv=True,
        tensor_parallel_size=2,
        skip_tokenizer_init=True,
        max_model_len=64,
        enforce_eager=True,
        kv_cache_memory_bytes=1 << 26,
    )
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, detokenize=False)
    assert token_ids(llm.generate(as_prompts(prompts), params, use_tqdm=False)) == expected
    llm.llm_engine.engine_core.shutdown()
