"""Several prompts in one call of the model: every bit is the one that each prompt has alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from tests.hf_model.test_models import EAGER_ONLY, ONE_AT_A_TIME, blocks_of, exact, load
from tests.sizes import size
from tools.make_random_model import make_random_model
from tools.model_shapes import SHAPES
from vllm.hf_layers.attention.prompt_attention import attend_to_prompts
from vllm.hf_layers.products.row_counts import MOST_AT_ONCE
from vllm.hf_layers.products.single_row_products import same_bits
from vllm.hf_model import grouped_prompts
from vllm.hf_model.group import Group
from vllm.hf_model.model import NO_ADAPTER, ExactModel
from vllm.hf_model.model_cache import Blocks
from vllm.hf_model.operations import Operations
from vllm.hf_model.stand_ins import stand_in

DTYPES = ("bfloat16", "float16", "float32")
# A soft cap on the logits; and code of their own that takes a number, not a list, of last tokens.
ALONE = ONE_AT_A_TIME | {"gemma2-2b", "internlm2-1.8b"}
LENGTHS = (3, 17, 64, 2, 100, 31, 40, 127)


def cases() -> list[Any]:
    """Every architecture in one dtype, or in all."""
    return [
        pytest.param(shape, dtype, id=f"{shape}-{dtype}")
        for i, shape in enumerate(sorted(SHAPES.keys() - EAGER_ONLY))
        for dtype in (DTYPES if size(0, 1) else [DTYPES[i % len(DTYPES)]])
    ]


def random_model(shape: str, dtype: str, folder: Path) -> PreTrainedModel:
    torch.manual_seed(0)
    make_random_model(shape, folder, num_layers=2, narrow=True)
    return load(folder, dtype, "sdpa")


def random_prompts(lengths: tuple[int, ...] = LENGTHS) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(3, 200, (length,), generator=generator) for length in lengths]


def first_logits(model: PreTrainedModel, prompt: torch.Tensor) -> torch.Tensor:
    """Return the logits that `generate()` chooses the first token by, [vocab_size]."""
    output: Any = model.generate(
        prompt[None],
        max_new_tokens=1,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
    )
    return output.logits[0][0]


def all_pages(engine: ExactModel) -> torch.Tensor:
    return torch.stack([layer.kv_cache.nan_to_num(0.5) for layer in engine.cache.pages])


@pytest.mark.some(4)
@pytest.mark.parametrize(("shape", "dtype"), cases())
@torch.inference_mode()
def test_prompts_together(shape: str, dtype: str, tmp_path: Path) -> None:
    """Lengths that were not tried when the engine started, some of which leave remainders."""
    model = random_model(shape, dtype, tmp_path)
    prompts = random_prompts()
    expected = [first_logits(model, prompt) for prompt in prompts]  # before anything stands in
    engine = exact(model, len(prompts))
    assert engine.groups_prompts[NO_ADAPTER] == (shape not in ALONE)
    if shape in ALONE:
        return
    assert engine.prompts is not None
    for i, prompt in enumerate(prompts):
        engine.alone(prompt[None], 0, Blocks(blocks_of(i)))
    alone = all_pages(engine)
    for layer in engine.cache.pages:
        layer.kv_cache.fill_(torch.nan)
    groups = engine.prompts.split(dict(enumerate(map(len, prompts))))
    windows_leave = {i for i in range(len(prompts)) if LENGTHS[i] <= engine.prompts._longest}
    assert {i for group in groups for i in group} == windows_leave
    for group in groups:
        blocks = torch.stack([blocks_of(i) for i in group])
        slots = engine.cache.pages[0].slots_of(blocks, [(0, LENGTHS[i]) for i in group])
        found = engine.prompts([prompts[i] for i in group], blocks, slots)
        for i, logits in zip(group, found, strict=True):
            assert same_bits(logits, expected[i].to(logits.dtype)), LENGTHS[i]
    for i in set(range(len(prompts))) - windows_leave:
        engine.alone(prompts[i][None], 0, Blocks(blocks_of(i)))
    assert same_bits(all_pages(engine), alone)


@torch.inference_mode()
def test_which_prompts_are_put_together(tmp_path: Path) -> None:
    """Not the long ones, nor single tokens, nor more than is multiplied at once."""
    engine = exact(random_model("tinyllama-1.1b", "float32", tmp_path), 1)
    assert engine.prompts is not None
    assert engine.prompts.split({0: 1, 3: 5, 4: 512, 7: 513, 9: 2}) == [[3, 4, 9]]
    assert engine.prompts.split({2: 9, 3: 513}) == []
    many = engine.prompts.split(dict.fromkeys(range(20), 500))
    assert sum(map(len, many)) == 20
    assert max(map(len, many)) == MOST_AT_ONCE // 500


# --- what may not be put together ----------------------------------------------------------------
def changed(
    layer: nn.Module,
    change: Callable[[torch.Tensor], torch.Tensor],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Change what a kind of layer answers."""
    kind: Any = type(layer)
    forward = kind.forward
    monkeypatch.setattr(kind, "forward", lambda self, x: change(forward(self, x)))


@pytest.mark.some(4)
@pytest.mark.parametrize(
    ("change", "together"),
    [
        (lambda x: x + 0.5, True),
        (lambda x: x**2, True),
        (lambda x: x**3, False),
        (torch.tanh, False),
        (torch.sigmoid, False),
        (lambda x: x - x.mean(1, keepdim=True), False),
        (lambda x: torch.cat((x[:, :1], x[:, 1:] + x[:, :-1]), 1), False),
        (lambda x: torch.nn.functional.linear(x, torch.eye(x.shape[-1], dtype=x.dtype)), False),
    ],
    ids=["sum", "square", "cube", "tanh", "sigmoid", "mean over tokens", "shift", "product"],
)
@torch.inference_mode()
def test_a_model_that_does_something_else(
    change: Callable[[torch.Tensor], torch.Tensor],
    together: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What rounds in vectors, and what looks at other tokens, keeps prompts apart."""
    model = random_model("tinyllama-1.1b", "bfloat16", tmp_path)
    layer: Any = model.get_decoder().layers[0]
    changed(layer.input_layernorm, change, monkeypatch)
    assert exact(model, 1).groups_prompts[NO_ADAPTER] == together


@torch.inference_mode()
def test_a_model_that_cannot_be_called_like_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = random_model("tinyllama-1.1b", "float32", tmp_path)
    kind: Any = type(model)
    forward = kind.forward

    def only_numbers(self: Any, logits_to_keep: int = 0, **kwargs: Any) -> Any:
        return forward(self, logits_to_keep=int(logits_to_keep), **kwargs)

    monkeypatch.setattr(kind, "forward", only_numbers)
    assert not exact(model, 1).groups_prompts[NO_ADAPTER]


@torch.inference_mode()
def test_a_window_that_is_narrower_than_a_prompt(tmp_path: Path) -> None:
    """A prompt that it does not hold needs a mask, and is computed alone."""
    torch.manual_seed(0)
    make_random_model("mistral-7b", tmp_path, num_layers=2, narrow=True)
    config = AutoConfig.from_pretrained(tmp_path)
    config.sliding_window = 32
    model = AutoModelForCausalLM.from_pretrained(
        tmp_path, config=config, dtype=torch.float32
    ).eval()
    engine = exact(model, 1)
    assert engine.prompts is not None
    assert engine.groups_prompts[NO_ADAPTER]
    assert engine.prompts.split({0: 31, 1: 32, 2: 30}) == [[0, 2]]


@torch.inference_mode()
def test_prompts_with_other_bits_are_computed_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nearly(*args: Any, **kwargs: Any) -> None:
        attend_to_prompts(*args, **kwargs)
        args[4][-1, 0, 0] += 0.01

    monkeypatch.setattr(grouped_prompts, "attend_to_prompts", nearly)
    engine = exact(random_model("tinyllama-1.1b", "bfloat16", tmp_path), 1)
    assert not engine.groups_prompts[NO_ADAPTER]


@torch.inference_mode()
def test_operations_of_layers_with_stand_ins_are_theirs(tmp_path: Path) -> None:
    """Without stand-ins, products and activations are found."""
    model = random_model("tinyllama-1.1b", "bfloat16", tmp_path)
    with Operations(model) as operations:
        model(input_ids=torch.tensor([[5, 6, 7]]), use_cache=False)
    assert {"linear", "silu", "cos", "scaled_dot_product_attention"} <= operations.others
    stand_in(model, Group())
    with Operations(model) as operations:
        model(input_ids=torch.tensor([[5, 6, 7]]), use_cache=False)
    assert "scaled_dot_product_attention" in operations.others
    assert not operations.others & {"linear", "silu", "cos"}
