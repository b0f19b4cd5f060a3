"""A request with a LoRA adapter gets the tokens of PEFT's model, beside requests without one.

The engine has a single slot for adapters, which is the one that upstream's CPU operators take for
requests without an adapter (lora-without-adapter-cpu.patch).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from tests.engines import MODEL, bundled_engine
from tests.hf_compat.test_parity import as_prompts, token_ids
from tests.reference import generate, prompt_ids
from vllm.lora.request import LoRARequest

if TYPE_CHECKING:
    from vllm import LLM

RANK = 8
PROJECTIONS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
NUM_PROMPTS = 12


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> tuple[PeftModel, Path]:
    """The bundled model with an adapter of random weights, in PEFT, and the adapter's folder."""
    base = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    config = LoraConfig(
        r=RANK,
        lora_alpha=2 * RANK,  # the two sides scale at different places: exact by a power of two
        target_modules=PROJECTIONS,
        init_lora_weights=False,  # an untrained adapter's would change nothing
        task_type="CAUSAL_LM",
    )
    torch.manual_seed(0)
    model = get_peft_model(base, config).eval()
    folder = tmp_path_factory.mktemp("adapter")
    model.save_pretrained(str(folder))
    return model, folder


@pytest.fixture(scope="module")
def lora_engine() -> Iterator[LLM]:
    with bundled_engine(enable_lora=True, max_lora_rank=RANK, max_loras=1) as llm:
        yield llm


@pytest.mark.some(2)
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"repetition_penalty": 1.2},
        {"do_sample": True, "temperature": 0.8, "top_p": 0.95},
    ],
    ids=["greedy", "penalty", "sampling"],
)
def test_some_requests_with_the_adapter_and_some_without(
    lora_engine: LLM,
    hf_model: PreTrainedModel,
    adapted: tuple[PeftModel, Path],
    tokenizer: PreTrainedTokenizerBase,
    fields: dict[str, Any],
) -> None:
    peft_model, folder = adapted
    prompts = prompt_ids(tokenizer, NUM_PROMPTS)
    configs = [GenerationConfig(max_new_tokens=48, seed=i, **fields) for i in range(NUM_PROMPTS)]
    adapter = LoRARequest("random", 1, str(folder))
    requests = [adapter if i % 2 else None for i in range(NUM_PROMPTS)]
    of_request = [peft_model if request else hf_model for request in requests]

    triples = zip(of_request, prompts, configs, strict=True)
    expected = [generate(model, prompt, config) for model, prompt, config in triples]
    outputs = lora_engine.generate(
        as_prompts(prompts), configs, lora_request=requests, use_tqdm=False
    )
    assert token_ids(outputs) == expected


def test_the_adapter_changes_these_prompts(
    hf_model: PreTrainedModel, adapted: tuple[PeftModel, Path], tokenizer: PreTrainedTokenizerBase
) -> None:
    """The test above would pass an engine that ignores an adapter that changes nothing."""
    config = GenerationConfig(max_new_tokens=32)
    for prompt in prompt_ids(tokenizer, 4):
        assert generate(adapted[0], prompt, config) != generate(hf_model, prompt, config)
