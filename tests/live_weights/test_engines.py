"""Engines whose weights change answer as fresh ones would, whatever way the weights come."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.engines import MODEL, bundled_engine
from tests.live_weights.checkpoints import Tensors, changed_checkpoint, tensors_of
from tests.reference import prompt_texts
from vllm import SamplingParams

if TYPE_CHECKING:
    from vllm import LLM
    from vllm.lora.request import LoRARequest

pytestmark = pytest.mark.long

TEXTS = prompt_texts(6)
"""One of them has several blocks of the prefix cache."""


@pytest.fixture(scope="module")
def new_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return changed_checkpoint(MODEL, tmp_path_factory.mktemp("changed") / "model")


@pytest.fixture(autouse=True)
def _functions_may_be_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_ALLOW_INSECURE_SERIALIZATION", "1")


def answers(llm: LLM, adapter: LoRARequest | None = None) -> list[Any]:
    """Return tokens, with the logprobs of the likeliest at each step."""
    params = SamplingParams(temperature=0, max_tokens=16, logprobs=4)
    outputs = llm.generate(TEXTS, params, use_tqdm=False, lora_request=adapter)
    found = []
    for output in outputs:
        steps = output.outputs[0].logprobs
        assert steps is not None
        likeliest = [sorted((token, one.logprob) for token, one in step.items()) for step in steps]
        found.append((list(output.outputs[0].token_ids), likeliest))
    return found


def load_list(tensors: Tensors, model: Any) -> None:
    model.load_weights(tensors)


def load_stream(tensors: Tensors, model: Any) -> None:
    model.load_weights(iter(tensors))


def update_in_pieces(tensors: Tensors, worker: Any) -> None:
    """As weight transfer engines do; each piece may end within a layer."""
    from vllm.model_executor.model_loader.reload import (
        finalize_layerwise_reload,
        initialize_layerwise_reload,
    )

    model = worker.model_runner.get_model()
    initialize_layerwise_reload(model)
    for begin in range(0, len(tensors), 5):
        model.load_weights(tensors[begin : begin + 5])
    finalize_layerwise_reload(model, worker.model_config)


def one_by_one(llm: LLM, tensors: Tensors) -> None:
    for pair in tensors:
        llm.apply_model(partial(load_list, [pair]))


def reload_from(folder: Path, llm: LLM) -> None:
    llm.collective_rpc("reload_weights", kwargs={"weights_path": str(folder)})


WAYS: list[Callable[[Any, Path, Tensors], Any]] = [
    lambda llm, folder, _: reload_from(folder, llm),
    lambda llm, _, tensors: one_by_one(llm, tensors),
    lambda llm, _, tensors: llm.apply_model(partial(load_list, tensors)),
    lambda llm, _, tensors: llm.collective_rpc(partial(update_in_pieces, tensors)),
    lambda llm, _, tensors: llm.apply_model(partial(load_stream, tensors)),
]

MODES: dict[str, dict[str, Any]] = {
    "none": {"hf_compat": False, "dtype": "bfloat16", "enforce_eager": False},
    "hf_compat": {"hf_compat": True, "dtype": "bfloat16"},
    "exact": {"hf_compat": "exact", "dtype": "float32"},
    "deterministic": {
        "hf_compat": False,
        "deterministic": True,
        "dtype": "bfloat16",
        "enable_lora": True,
        "max_lora_rank": 8,
    },
}


def adapter_at(folder: Path, name: str = "adapter", **settings: Any) -> LoRARequest:
    from vllm.lora.request import LoRARequest

    return LoRARequest(name, 1 + sum(name.encode()), str(folder), **settings)


@pytest.mark.parametrize("mode", MODES)
def test_each_way(new_model: Path, adapters: list[Path], tmp_path: Path, mode: str) -> None:
    settings = {**MODES[mode], "max_num_batched_tokens": 2048}
    has_adapters = "enable_lora" in settings
    with bundled_engine(model=str(new_model), **settings) as fresh:
        expected = {new_model: answers(fresh)}
        adapted = answers(fresh, adapter_at(adapters[1])) if has_adapters else []
    with bundled_engine(**settings) as llm:
        expected[MODEL] = answers(llm)
        assert all(a[0] != b[0] for a, b in zip(*expected.values(), strict=True))
        for i, change in enumerate(WAYS):
            folder = MODEL if i % 2 else new_model
            change(llm, folder, tensors_of(folder))
            assert answers(llm) == expected[folder], i
        llm.sleep(level=2)
        llm.wake_up()
        reload_from(MODEL, llm)
        assert answers(llm) == expected[MODEL]
        if has_adapters:
            adapter_that_is_replaced(llm, adapters, tmp_path / "adapter")
        no_answers_of_no_model(llm, tensors_of(new_model), expected[new_model])
        if has_adapters:
            assert answers(llm, adapter_at(tmp_path / "adapter")) == adapted


def adapter_that_is_replaced(llm: LLM, adapters: list[Path], place: Path) -> None:
    """Under its name and its path, which the prefix cache knows it by."""
    own = [answers(llm, adapter_at(folder, f"own {folder.name}")) for folder in adapters]
    assert own[0] != own[1]
    for i in (0, 1, 0, 1):
        place.unlink(missing_ok=True)
        place.symlink_to(adapters[i])
        llm.llm_engine.add_lora(adapter_at(place, load_inplace=True))
        assert answers(llm, adapter_at(place)) == own[i]


def no_answers_of_no_model(llm: LLM, tensors: Tensors, expected: list[Any]) -> None:
    """What failed midway, or came in part, is told to who asks; then all weights come."""
    with pytest.raises(Exception, match=r"There is no checkpoint /none/here: nothing"):
        reload_from(Path("/none/here"), llm)
    broken = [*tensors[:6], ("model.norm.weight", torch.zeros(3))]
    with pytest.raises(Exception, match=r"norm.weight \[3\] cannot be loaded.* have not\. The"):
        llm.apply_model(partial(load_stream, broken))
    for output in llm.generate(TEXTS, SamplingParams(max_tokens=4), use_tqdm=False):
        answer = output.outputs[0]
        assert (answer.finish_reason, answer.token_ids) == ("error", [])
        assert "model.norm.weight [3] cannot be loaded" in str(answer.stop_reason)
    llm.apply_model(partial(load_list, tensors))
    assert answers(llm) == expected


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two adapters of random weights."""
    from peft import LoraConfig, get_peft_model

    found = []
    for seed in range(2):
        base = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.bfloat16)
        torch.manual_seed(seed)
        config = LoraConfig(
            r=4, lora_alpha=16, target_modules=["q_proj", "down_proj"], init_lora_weights=False
        )
        found.append(tmp_path_factory.mktemp("adapters") / str(seed))
        get_peft_model(base, config).save_pretrained(str(found[-1]))
    return found
