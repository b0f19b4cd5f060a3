"""Adapters of PEFT in exact mode: each has its bits, whichever others are loaded, or is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from tests.adapters import KINDS, adapted_model, base_model, make_adapter
from tests.engines import bundled_engine
from tests.hf_compat.test_parity import as_prompts
from tests.hf_model.test_engine import stock_logits
from vllm.exceptions import VLLMValidationError
from vllm.hf_compat.answers import HFOutput
from vllm.hf_model.layer_exchange import LayerExchange, NotServedError
from vllm.lora.request import LoRARequest

if TYPE_CHECKING:
    from vllm import LLM

REFUSED = {
    "aLoRA": r"an activated LoRA \(alora_invocation_tokens\) begins where PeftModel.generate\(\)",
    "OLoRA": r"init_lora_weights='olora' changes the model's own weights; PEFT's save_pretrained",
    "prefix": "PREFIX_TUNING is no change of the model's layers alone",
    "prompt": "PROMPT_TUNING is no change of the model's layers alone",
}
SERVED = [kind for kind in KINDS if kind not in REFUSED]


@pytest.fixture(scope="module")
def exact_engine() -> Iterator[LLM]:
    """It has room for all adapters, so that those before are there when the next one comes."""
    with bundled_engine(
        hf_compat="exact",
        max_num_batched_tokens=1024,
        enable_lora=True,
        max_loras=2,
        max_cpu_loras=2 * len(KINDS),
    ) as llm:
        yield llm


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("adapters")
    return {kind: make_adapter(kind, folder / kind) for kind in KINDS}


def logits_of(
    model: PreTrainedModel, prompt: list[int], config: GenerationConfig
) -> tuple[list[int], bytes]:
    """Return the tokens of `generate()`, and the bytes of its logits."""
    tokens, logits = stock_logits(model, prompt, config)
    return tokens, logits.tobytes()


def answer(llm: LLM, prompt: list[int], request: LoRARequest | None) -> tuple[list[int], bytes]:
    (output,) = llm.generate(
        as_prompts([prompt]),
        max_new_tokens=8,
        output_logits=True,
        lora_request=request,
        use_tqdm=False,
    )
    one = output.outputs[0]
    assert isinstance(one, HFOutput)
    assert one.logits is not None
    return list(one.token_ids), one.logits.tobytes()


@pytest.mark.some(1)
@pytest.mark.parametrize("backwards", [False, True])
def test_all_kinds_beside_each_other(
    exact_engine: LLM,
    hf_model: PreTrainedModel,
    folders: dict[str, Path],
    tokenizer: PreTrainedTokenizerBase,
    backwards: bool,
) -> None:
    """In both orders: what PEFT puts into a model decides what it can put into it next."""
    prompt = tokenizer("def fibonacci(n):\n").input_ids
    config = GenerationConfig(max_new_tokens=8)
    plain = logits_of(hf_model, prompt, config)
    exact_engine.llm_engine.reset_prefix_cache()
    for number, kind in enumerate(SERVED[::-1] if backwards else SERVED, 1):
        number += backwards * len(KINDS)
        request = LoRARequest(f"{kind} {number}", number, str(folders[kind]))
        expected = logits_of(adapted_model(folders[kind]), prompt, config)
        assert answer(exact_engine, prompt, request) == expected, kind
        assert expected != plain, kind
        assert answer(exact_engine, prompt, None) == plain, kind


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_more_than_layers(
    exact_engine: LLM,
    hf_model: PreTrainedModel,
    folders: dict[str, Path],
    tokenizer: PreTrainedTokenizerBase,
    kind: str,
) -> None:
    prompt = tokenizer("import os\n").input_ids
    request = LoRARequest(kind, 100, str(folders[kind]))
    with pytest.raises(VLLMValidationError, match=REFUSED[kind]):
        answer(exact_engine, prompt, request)
    plain = logits_of(hf_model, prompt, GenerationConfig(max_new_tokens=8))
    assert answer(exact_engine, prompt, None) == plain


class Biased(nn.Module):
    """A model with two weights."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)


def write_bias(model: Biased) -> None:
    model.load_state_dict({"layer.bias": torch.ones(2)}, strict=False)


def take_from_weight(model: Biased) -> None:
    model.layer.weight.data = model.layer.weight.data + 1


@pytest.mark.parametrize("change", [write_bias, take_from_weight])
def test_an_adapter_that_changes_the_model(change: Callable[[Biased], None]) -> None:
    """As those with biases do, and those whose matrices are taken out of the weights."""
    model = Biased()
    before = {own: value.clone() for own, value in model.state_dict().items()}
    name = change.__name__.rpartition("_")[2]
    with pytest.raises(NotServedError, match=f"changes weights of the model itself .layer.{name}"):
        record(model, lambda: change(model))
    for own, value in model.state_dict().items():
        assert torch.equal(value, before[own])


def record(model: nn.Module, change: Callable[[], object]) -> None:
    with LayerExchange(model).recording():
        change()


def test_the_same_embeddings_again() -> None:
    """PEFT saves them with some adapters, as the model has them."""
    model = base_model()
    embeddings = model.get_input_embeddings()
    place, weight = embeddings.weight.data_ptr(), embeddings.weight.clone()
    record(model, lambda: embeddings.load_state_dict({"weight": weight}))
    assert embeddings.weight.data_ptr() == place
    with pytest.raises(NotServedError, match=r"\(model\.embed_tokens\.weight\)"):
        record(model, lambda: embeddings.load_state_dict({"weight": weight + 1}))
    assert torch.equal(embeddings.weight, weight)
