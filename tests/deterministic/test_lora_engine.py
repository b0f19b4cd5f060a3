"""Engines with LoRA adapters: the same logits alone, in a batch and in chunks; refusals."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.engines import MODEL, bundled_engine
from tests.kernels.portable_cases import assert_same, numbers

if TYPE_CHECKING:
    from vllm import LLM

MAX_RANK = 16
TARGETS = {
    "all": (12, ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]),
    "some": (3, ["q_proj", "v_proj", "down_proj"]),
    "head": (4, ["lm_head"]),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Adapters of random weights."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    found = {}
    for name, (rank, targets) in TARGETS.items():
        base = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.bfloat16)
        torch.manual_seed(rank)
        config = LoraConfig(
            r=rank,
            lora_alpha=4 * rank,
            target_modules=targets,
            init_lora_weights=False,
            task_type="CAUSAL_LM",
        )
        found[name] = tmp_path_factory.mktemp("adapters") / name
        get_peft_model(base, config).save_pretrained(str(found[name]))
    return found


@contextmanager
def started(ranks: int) -> Iterator[LLM]:
    """A step has fewer tokens than a batch of prompts."""
    with bundled_engine(
        dtype="bfloat16",
        deterministic=True,
        max_model_len=256,
        max_num_batched_tokens=64,
        enable_lora=True,
        max_loras=2,
        max_lora_rank=MAX_RANK,
        enable_prefix_caching=False,
        tensor_parallel_size=ranks,
    ) as llm:
        yield llm


@pytest.fixture(scope="module")
def engine() -> Iterator[LLM]:
    with started(1) as llm:
        yield llm


LENGTHS = (60, 3, 17, 33, 64, 1, 41, 90)
PROMPTS = [numbers(n, seed=n).abs().mul(4000).int().add(5).tolist() for n in LENGTHS]


def request(folders: dict[str, Path], name: str) -> Any:
    from vllm.lora.request import LoRARequest

    return LoRARequest(name, list(TARGETS).index(name) + 1, str(folders[name]))


def mixed_adapters(folders: dict[str, Path]) -> list[Any]:
    """Return an adapter, or none, for each prompt."""
    adapters = [request(folders, "all"), None, request(folders, "some")]
    return [adapters[i % 3] for i in range(len(PROMPTS))]


def logits_of(engine: LLM, prompts: list[list[int]], adapters: list[Any]) -> list[torch.Tensor]:
    given: Any = [{"prompt_token_ids": prompt} for prompt in prompts]
    settings = {"max_new_tokens": 6, "min_new_tokens": 6, "output_logits": True}
    outputs = engine.generate(given, lora_request=adapters, use_tqdm=False, **settings)
    return [torch.as_tensor(output.outputs[0].logits) for output in outputs]


@pytest.mark.long
def test_batches_with_several_adapters(engine: LLM, folders: dict[str, Path]) -> None:
    """Alone, all but one prompt are computed whole; PEFT's model says what is roughly right."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    chosen = mixed_adapters(folders)
    together = logits_of(engine, PROMPTS, chosen)
    for prompt, one, logits in zip(PROMPTS, chosen, together, strict=True):
        assert_same(logits_of(engine, [prompt], [one])[0], logits)
    for i in (0, 2):
        base = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
        theirs = PeftModel.from_pretrained(base, str(folders[chosen[i].lora_name])).eval()
        with torch.no_grad():
            right = theirs(torch.tensor([PROMPTS[i]])).logits[0, -1]
        plain = logits_of(engine, [PROMPTS[i]], [None])[0][0]
        assert (together[i][0] - right).norm() < 0.02 * right.norm()
        assert (plain - right).norm() > 0.1 * right.norm()


@pytest.mark.long
def test_two_ranks(engine: LLM, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    chosen = mixed_adapters(folders)
    with started(2) as other:
        with pytest.raises(Exception, match="adapters of embeddings and of the head"):
            other.llm_engine.add_lora(request(folders, "head"))  # which both ranks reply
        found = logits_of(other, PROMPTS, chosen)
    for one, logits in zip(logits_of(engine, PROMPTS, chosen), found, strict=True):
        assert_same(logits, one)


@pytest.mark.long
def test_an_adapter_of_the_head_is_refused(engine: LLM, folders: dict[str, Path]) -> None:
    """It is forgotten, not taken for one that is there; the engine goes on."""
    head = request(folders, "head")
    for _ in range(2):
        with pytest.raises(Exception, match=r"lm_head .* adapters of embeddings and of the head"):
            engine.llm_engine.add_lora(head)
    assert head.lora_int_id not in engine.llm_engine.list_loras()
    assert logits_of(engine, [[5, 6, 7]], [None])[0].isfinite().all()
