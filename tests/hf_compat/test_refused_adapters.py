"""An adapter that cannot be served is refused in a sentence, and the engine lives on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from tests.adapters import KINDS, adapted_model, make_adapter
from tests.hf_compat.test_lora import lora_engine  # noqa: F401
from tests.hf_compat.test_parity import as_prompts, token_ids
from tests.reference import generate
from vllm import SamplingParams
from vllm.exceptions import VLLMValidationError
from vllm.lora.request import LoRARequest

if TYPE_CHECKING:
    from vllm import LLM
    from vllm.outputs import RequestOutput

REFUSED = {
    "OLoRA": "vLLM does not support init_lora_weights='olora'",
    "tokens": "is unsupported LoRA weight",
    "tokens by name": "is unsupported LoRA weight",
    "whole modules": r"Unsupported modules_to_save: \['lm_head'\]",
    "bias": "Adapter bias is not supported",
    "LoRA bias": "does not support LoRA bias",
    "DoRA": "does not yet support DoRA",
    "rank": r"LoRA rank 64 is greater than max_lora_rank 8\): raise max_lora_rank",
    "aLoRA": "does not support Activated LoRA",
    "IA3": "Missing required configuration fields",
    "prefix": "Missing required configuration fields",
    "prompt": "Missing required configuration fields",
}
SERVED = [kind for kind in KINDS if kind not in REFUSED]


@pytest.fixture
def prompt(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    ids = tokenizer("def fibonacci(n):\n").input_ids
    assert isinstance(ids, list)
    return ids


def answers(llm: LLM, prompt: list[int], request: LoRARequest | None) -> list[list[int]]:
    return token_ids(
        llm.generate(as_prompts([prompt]), max_new_tokens=8, lora_request=request, use_tqdm=False)
    )


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_answered_as_peft_does_or_refused(
    lora_engine: LLM,  # noqa: F811
    hf_model: PreTrainedModel,
    prompt: list[int],
    tmp_path: Path,
    kind: str,
) -> None:
    folder = make_adapter(kind, tmp_path / "adapter")
    request = LoRARequest(kind, 10 + list(KINDS).index(kind), str(folder))
    config = GenerationConfig(max_new_tokens=8)
    if kind in REFUSED:
        with pytest.raises(VLLMValidationError, match=f"^The adapter .*{REFUSED[kind]}"):
            answers(lora_engine, prompt, request)
    else:
        model = adapted_model(folder)
        expected = model.generate(input_ids=as_batch(prompt), generation_config=config)
        assert answers(lora_engine, prompt, request) == expected[:, len(prompt) :].tolist()
    assert answers(lora_engine, prompt, None) == [generate(hf_model, prompt, config)]


def as_batch(prompt: list[int]) -> object:
    import torch

    return torch.tensor([prompt])


def test_no_adapter_there(
    lora_engine: LLM,  # noqa: F811
    prompt: list[int],
    tmp_path: Path,
) -> None:
    request = LoRARequest("missing", 90, str(tmp_path))
    with pytest.raises(VLLMValidationError, match=r"No adapter found .*save_pretrained\(\)"):
        answers(lora_engine, prompt, request)


def test_a_request_that_comes_by_another_way(
    lora_engine: LLM,  # noqa: F811
    prompt: list[int],
    tmp_path: Path,
) -> None:
    """The engine itself looks at each, too."""
    folder = make_adapter("bias", tmp_path / "adapter")
    engine = lora_engine.llm_engine
    params = SamplingParams(max_tokens=4)
    request = LoRARequest("bad", 91, str(folder))
    engine.add_request("0", {"prompt_token_ids": prompt}, params, lora_request=request)
    engine.add_request("1", {"prompt_token_ids": prompt}, params)
    ended: dict[str, RequestOutput] = {}
    while engine.has_unfinished_requests():
        ended |= {output.request_id: output for output in engine.step() if output.finished}
    refused, answered = ended["0"].outputs[0], ended["1"].outputs[0]
    assert refused.finish_reason == "error"
    assert "'bad' cannot be served (Adapter bias is not supported): " in str(refused.stop_reason)
    assert len(answered.token_ids) == 4


def test_files_that_change(
    lora_engine: LLM,  # noqa: F811
    hf_model: PreTrainedModel,
    prompt: list[int],
    tmp_path: Path,
) -> None:
    """The engine has room for one adapter, and loads the first again when it is asked for."""
    folders = [make_adapter("plain", tmp_path / name) for name in ("first", "second")]
    first, second = (LoRARequest(str(one), 92 + i, str(one)) for i, one in enumerate(folders))
    assert answers(lora_engine, prompt, first) == answers(lora_engine, prompt, second)
    assert answers(lora_engine, prompt, first) == answers(lora_engine, prompt, first)
    make_adapter("bias", folders[0])
    answers(lora_engine, prompt, first)  # as it was loaded
    answers(lora_engine, prompt, second)
    with pytest.raises(VLLMValidationError, match="Adapter bias is not supported"):
        answers(lora_engine, prompt, first)
    config = GenerationConfig(max_new_tokens=8)
    assert answers(lora_engine, prompt, None) == [generate(hf_model, prompt, config)]
