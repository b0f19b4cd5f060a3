"""Engines of several ranks, and servers of several engines, answer as one process does."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import openai
import pytest
import torch
from transformers import AutoModelForCausalLM, GenerationConfig

from tests.engines import MODEL, bundled_engine
from tests.reference import generate
from tests.scale_out.rows import ASKED_HF, of_one_engine, of_transformers, short_prompts
from tests.server.conftest import start_server, wait_until_healthy
from vllm.deterministic import attach

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from tests.scale_out.conftest import LocalRay
    from vllm import LLM

pytestmark = pytest.mark.long

CONFIG = GenerationConfig(max_new_tokens=24, no_repeat_ngram_size=3, repetition_penalty=1.2)
PROMPTS = short_prompts(32)


@pytest.fixture(autouse=True)
def cores_are_chosen_by_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_CPU_OMP_THREADS_BIND", raising=False)


@pytest.mark.parametrize(
    "ranks",
    [
        pytest.param({"tensor_parallel_size": 2}, id="tensor parallel"),
        pytest.param({"pipeline_parallel_size": 2}, id="pipeline"),
    ],
)
def test_two_ranks_on_a_machine_of_any_numa_nodes(
    ranks: dict[str, Any],
    engine: LLM,
    hf_model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    """In float32 the sums of parts differ in their last bits, and tokens do not."""
    with bundled_engine(**ranks) as llm:
        answers = of_one_engine(llm, PROMPTS, CONFIG)
    assert answers == of_one_engine(engine, PROMPTS, CONFIG)
    asked = of_transformers(hf_model, tokenizer, PROMPTS, CONFIG)
    assert {row: answers[row] for row in asked} == asked


def test_ray_carries_the_flags_to_its_workers(
    local_ray: LocalRay,
    tokenizer: PreTrainedTokenizerBase,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of both flags: HF's rules, and the bits of one rank, which `attach` gives Transformers."""
    for name, value in local_ray.variables.items():
        monkeypatch.setenv(name, value)
    prompts = PROMPTS[:ASKED_HF]
    with bundled_engine(
        dtype="bfloat16",
        deterministic=True,
        tensor_parallel_size=2,
        distributed_executor_backend="ray",
    ) as llm:
        outputs = llm.generate(prompts, CONFIG, output_logits=True, use_tqdm=False)
    model = attach(AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.bfloat16).eval())
    for prompt, output in zip(prompts, outputs, strict=True):
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        theirs = model.generate(
            ids, generation_config=CONFIG, output_logits=True, return_dict_in_generate=True
        )
        answer = output.outputs[0]
        assert list(answer.token_ids) == theirs.sequences[0, ids.shape[1] :].tolist()
        assert torch.equal(torch.from_numpy(answer.logits), torch.cat(theirs.logits))


def test_two_engines_of_a_server(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    """In 16 bits, too, each engine of data parallelism has the bits of `generate()`."""
    flags = ["--hf-compat", "--dtype", "bfloat16", "--data-parallel-size", "2"]
    server = start_server(tmp_path, *flags)
    fields = {"max_new_tokens": 24, "no_repeat_ngram_size": 3, "repetition_penalty": 1.2}
    try:
        wait_until_healthy(server)
        client = openai.OpenAI(base_url=f"{server.address}/v1", api_key="none", max_retries=0)

        def ask(prompt: str) -> str:
            body = {"model": "tiny", "prompt": prompt, "extra_body": fields}
            return client.completions.create(**body).choices[0].text  # type: ignore[call-overload]

        with ThreadPoolExecutor(len(PROMPTS)) as clients:
            answers = list(clients.map(ask, PROMPTS))
    finally:
        server.process.terminate()
        server.process.wait(timeout=60)
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.bfloat16).eval()
    for prompt, answer in list(zip(PROMPTS, answers, strict=True))[:ASKED_HF]:
        tokens = generate(model, tokenizer(prompt)["input_ids"], CONFIG)
        assert answer == tokenizer.decode(tokens, skip_special_tokens=True)
