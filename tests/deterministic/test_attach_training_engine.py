"""attach(training=True) beside an engine: logprobs digit for digit, with LoRA and without."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from peft import LoraConfig, get_peft_model

from tests.deterministic.models import bundled_model, padded, token_ids
from tests.engines import bundled_engine
from vllm import SamplingParams
from vllm.deterministic import attach, token_log_probs
from vllm.lora.request import LoRARequest

if TYPE_CHECKING:
    from vllm import LLM

PROMPTS = [token_ids(n, seed=n, vocabulary=4096)[0].tolist() for n in (5, 70, 33)]
NUM_TOKENS = 12


@pytest.fixture(scope="module")
def engine() -> Iterator[LLM]:
    with bundled_engine(
        deterministic=True,
        hf_compat=False,
        dtype="bfloat16",
        max_model_len=512,
        enable_lora=True,
        max_lora_rank=8,
        logprobs_mode="processed_logprobs",
    ) as llm:
        yield llm


def outputs_of(llm: LLM, adapter: LoRARequest | None = None, **sampling: Any) -> list[Any]:
    given: Any = [{"prompt_token_ids": prompt} for prompt in PROMPTS]
    params = SamplingParams(
        max_tokens=NUM_TOKENS,
        logprobs=0,
        prompt_logprobs=0,
        ignore_eos=True,
        seed=1,
        **sampling,
    )
    return llm.generate(given, params, use_tqdm=False, lora_request=adapter)


def rows_of(outputs: list[Any]) -> dict[str, torch.Tensor]:
    """Return prompts and answers as arguments of a model, padded."""
    return padded(
        [torch.tensor([PROMPTS[i] + [*outputs[i].outputs[0].token_ids]]) for i in (0, 1, 2)]
    )


def check(found: torch.Tensor, tokens: list[int], logprobs: list[Any]) -> None:
    """Compare the last numbers of a row with those that an engine gives to tokens."""
    given = [at[token].logprob for token, at in zip(tokens, logprobs, strict=True)]
    assert found[-len(given) :].tolist() == given


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.7, "top_k": 40, "top_p": 0.9}])
def test_logprobs_of_answers_and_prompts_are_the_engines(
    engine: LLM, sampling: dict[str, Any]
) -> None:
    model = attach(bundled_model(torch.bfloat16), training=True).train()
    outputs = outputs_of(engine, **sampling)
    rows = rows_of(outputs)
    arguments: dict[str, Any] = {"attention_mask": rows["attention_mask"]}
    found = token_log_probs(model, rows["input_ids"], **arguments, **sampling)
    raw = token_log_probs(model, rows["input_ids"], **arguments)
    assert found.requires_grad
    for row, raw_row, prompt, output in zip(found, raw, PROMPTS, outputs, strict=True):
        answer = output.outputs[0]
        check(row, answer.token_ids, answer.logprobs)
        # Of prompts an engine returns those before temperature, top_k and top_p.
        check(raw_row[:-NUM_TOKENS], prompt[1:], output.prompt_logprobs[1:])


def test_adapters_that_peft_trains_are_the_engines(engine: LLM, tmp_path: Path) -> None:
    """Its own parameters are float32, and the engine has them in bfloat16."""
    base = attach(bundled_model(torch.bfloat16), training=True)
    names = ["q_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    config = LoraConfig(r=8, lora_alpha=24, target_modules=names, task_type="CAUSAL_LM")
    torch.manual_seed(0)
    model: Any = get_peft_model(base, config).train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert {parameter.dtype for parameter in trained} == {torch.float32}
    optimizer = torch.optim.AdamW(trained, lr=0.02)
    before = outputs_of(engine, temperature=0.0)
    for step in range(3):
        loss = -token_log_probs(model, token_ids(50, seed=step, vocabulary=4096)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.save_pretrained(tmp_path)
    outputs = outputs_of(engine, LoRARequest("trained", 1, str(tmp_path)), temperature=0.0)
    assert outputs[1].outputs[0].logprobs != before[1].outputs[0].logprobs
    rows = rows_of(outputs)
    found = token_log_probs(model, rows["input_ids"], attention_mask=rows["attention_mask"])
    for row, output in zip(found, outputs, strict=True):
        check(row, output.outputs[0].token_ids, output.outputs[0].logprobs)
    with model.disable_adapter():
        rows = rows_of(before)
        found = token_log_probs(model, rows["input_ids"], attention_mask=rows["attention_mask"])
    for row, output in zip(found, before, strict=True):
        check(row, output.outputs[0].token_ids, output.outputs[0].logprobs)
