"""Models with layers that hf_compat does not know: Mamba's and linear attention's.

In exact mode they have Transformers' bits.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    Mamba2Config,
    PreTrainedModel,
    Qwen3NextConfig,
)

from tests.engines import bundled_engine
from vllm.engine.arg_utils import EngineArgs
from vllm.exceptions import VLLMValidationError
from vllm.hf_layers.layers.linear import HFLinearMethod

if TYPE_CHECKING:
    from vllm import LLM

MAMBA2: dict[str, Any] = {
    "hidden_size": 64, "state_size": 16, "num_heads": 8, "head_dim": 16, "n_groups": 1,
    "chunk_size": 16, "num_hidden_layers": 2, "vocab_size": 4096, "bos_token_id": 1,
    "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
QWEN3_NEXT: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 64, "linear_num_value_heads": 4,
    "linear_num_key_heads": 2, "linear_key_head_dim": 32, "linear_value_head_dim": 32,
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32, "vocab_size": 4096,
}  # fmt: skip


def made(config: Any) -> PreTrainedModel:
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config).eval()
    return model


@pytest.mark.parametrize(
    ("config", "num_blocks"),
    [(Mamba2Config(**MAMBA2), 8), (Qwen3NextConfig(**QWEN3_NEXT), 20)],
    ids=["mamba2", "qwen3-next"],
)
def test_exact_mode_answers_as_generate(config: Any, num_blocks: int, tmp_path: Path) -> None:
    """Three requests at once, from a prompt of a token on; beams part with copies of states, and
    searches preempt each other, since there are blocks for one or two.
    """
    model = made(config).bfloat16()
    model.save_pretrained(tmp_path)
    prompts = [[1, 5, 9], [7], [*range(10, 40)]]
    calls: list[dict[str, Any]] = [{}, {"num_beams": 3}]
    if isinstance(config, Qwen3NextConfig):
        calls.append({"guidance_scale": 1.5})
    expected = [[stock(model, prompt, **call) for prompt in prompts] for call in calls]
    arguments: dict[str, Any] = {"dtype": "bfloat16", "hf_compat": "exact", "max_model_len": 64}
    arguments |= {"num_gpu_blocks_override": num_blocks, "skip_tokenizer_init": True}
    with bundled_engine(model=str(tmp_path), **arguments) as llm:
        given: Any = [{"prompt_token_ids": prompt} for prompt in prompts]
        for call, answers in zip(calls, expected, strict=True):
            found = llm.generate(given, use_tqdm=False, max_new_tokens=8, eos_token_id=None, **call)
            assert [list(one.outputs[0].token_ids) for one in found] == answers
        assert preemptions(llm) > 0
        if isinstance(config, Mamba2Config):
            with pytest.raises(VLLMValidationError, match="not available with Mamba2ForCausalLM"):
                llm.generate(given, use_tqdm=False, max_new_tokens=8, guidance_scale=1.5)


def preemptions(llm: LLM) -> float:
    """Return how many requests an engine has preempted."""
    counters: Any = llm.get_metrics()
    return sum(one.value for one in counters if one.name == "vllm:num_preemptions")


@torch.inference_mode()
def stock(model: PreTrainedModel, prompt: list[int], **call: Any) -> list[int]:
    """Return what `generate()` answers."""
    output: Any = model.generate(
        torch.tensor([prompt]), max_new_tokens=8, do_sample=False, eos_token_id=None, **call
    )
    answer: list[int] = output[0, len(prompt) :].tolist()
    return answer


def test_a_convolution_in_a_linear_layer_is_left_alone() -> None:
    layer = nn.Module()
    layer.weight = nn.Parameter(torch.zeros(8, 1, 4, dtype=torch.bfloat16), requires_grad=False)
    HFLinearMethod().process_weights_after_loading(layer)
    assert layer.weight.shape == (8, 1, 4)


def test_mamba_answers_with_hf_compat_in_16_bits(tmp_path: Path) -> None:
    """Greedily, with a penalty: vLLM's logits by Hugging Face's rules."""
    made(Mamba2Config(**MAMBA2)).bfloat16().save_pretrained(tmp_path)
    arguments: dict[str, Any] = {"dtype": "bfloat16", "max_num_batched_tokens": 1024}
    with bundled_engine(model=str(tmp_path), skip_tokenizer_init=True, **arguments) as llm:
        prompt: Any = {"prompt_token_ids": [1, 5, 9]}
        answer = llm.generate(prompt, max_new_tokens=8, min_new_tokens=8, use_tqdm=False)
        assert len(answer[0].outputs[0].token_ids) == 8
        once = llm.generate(
            prompt, max_new_tokens=8, min_new_tokens=8, no_repeat_ngram_size=1, use_tqdm=False
        )[0].outputs[0]
        assert len(set(once.token_ids)) == 8


def test_drafts_are_refused(tmp_path: Path) -> None:
    """A rejected draft stays in the states: every later token is another one."""
    Mamba2Config(**MAMBA2, architectures=["Mamba2ForCausalLM"]).save_pretrained(tmp_path)
    drafts = {"method": "ngram", "num_speculative_tokens": 2}
    for mode in (True, "rules"):
        with pytest.raises(ValueError, match="drafts of layers without attention"):
            EngineArgs(
                str(tmp_path), dtype="float32", hf_compat=mode, skip_tokenizer_init=True,
                speculative_config=drafts,
            ).create_engine_config()  # fmt: skip
