"""Attached models whose layers keep states: a token has the same bits in any batch and cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, DynamicCache, PreTrainedModel

from tests.deterministic.models import token_ids
from tests.deterministic.states_models import CHANGES, config_of, write_model
from tests.kernels.portable_cases import assert_same
from tools.definitions.proof import random_model
from vllm.deterministic import attach
from vllm.hf_layers.engine.exact_models import CACHE_NAMES, cache_name
from vllm.twin.weights import write_checkpoint

ROWS = [token_ids(tokens, seed, vocabulary=250) for seed, tokens in enumerate((30, 66, 3))]
LEFT, WIDTH = (20, 4, 0), 72


def stock(name: str, folder: Path) -> PreTrainedModel:
    write_model(name, folder)
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()


@pytest.fixture(scope="module", params=CHANGES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return attach(stock(request.param, tmp_path_factory.mktemp("model")))


def through_cache(model: Any, ids: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    """Return the logits of tokens that are given in parts."""
    name, cache, found = cache_name(model), None, []
    positions = torch.arange(ids.shape[1]).unsqueeze(0)
    for part, places in zip(ids.split(sizes, 1), positions.split(sizes, 1), strict=True):
        done = model(part, position_ids=places, use_cache=True, **{name: cache})
        cache = getattr(done, name)
        found.append(done.logits[0])
    return torch.cat(found)


@torch.no_grad()
def test_padding_on_both_ends_changes_no_bit(model: Any) -> None:
    ids = torch.zeros(len(ROWS), WIDTH, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for i, (start, row) in enumerate(zip(LEFT, ROWS, strict=True)):
        ids[i, start : start + row.shape[1]] = row
        mask[i, start : start + row.shape[1]] = 1
    logits = model(ids, attention_mask=mask).logits
    for start, row, found in zip(LEFT, ROWS, logits, strict=True):
        assert_same(found[start : start + row.shape[1]], model(row).logits[0])


@torch.no_grad()
@pytest.mark.parametrize("sizes", [[1] * 30, [29, 1], [2, 17, 11]], ids=["ones", "last", "chunks"])
def test_tokens_in_parts_have_the_bits_of_the_whole(model: Any, sizes: list[int]) -> None:
    assert_same(through_cache(model, ROWS[0], sizes), model(ROWS[0]).logits[0])


@torch.no_grad()
@pytest.mark.parametrize("num_beams", [1, 3])
def test_a_padded_batch_generates_what_its_rows_generate(model: Any, num_beams: int) -> None:
    options: dict[str, Any] = {"max_new_tokens": 8, "min_new_tokens": 8, "num_beams": num_beams}
    width = max(row.shape[1] for row in ROWS)
    ids = torch.cat([torch.nn.functional.pad(row, (width - row.shape[1], 0)) for row in ROWS])
    mask = torch.cat(
        [torch.nn.functional.pad(torch.ones_like(row), (width - row.shape[1], 0)) for row in ROWS]
    )
    together = model.generate(ids, attention_mask=mask, do_sample=False, pad_token_id=0, **options)
    for row, found in zip(ROWS, together, strict=True):
        alone = model.generate(row, do_sample=False, pad_token_id=0, **options)
        assert alone[0, row.shape[1] :].tolist() == found[width:].tolist()


@torch.no_grad()
def test_logits_are_nearly_those_of_transformers(tmp_path: Path) -> None:
    """With OLMo hybrid, whose steps are doubled, and whose norm has an epsilon of its own."""
    rounded = stock("olmo_hybrid", tmp_path)
    exact = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    expected, other = exact(ROWS[1]).logits, rounded(ROWS[1]).logits
    own = attach(rounded)(ROWS[1]).logits
    assert (own - expected).norm() < 1.5 * (other - expected).norm()


def test_training_is_refused_before_anything_changes(tmp_path: Path) -> None:
    model = stock("qwen3_next", tmp_path)
    with pytest.raises(ValueError, match=r"linear_attn: .* no gradients: attach\(model.eval"):
        attach(model, training=True)
    assert model.config._attn_implementation != "vllm_deterministic_training"


@torch.no_grad()
def test_a_cache_that_goes_back_is_refused(tmp_path: Path) -> None:
    model = attach(stock("mamba2", tmp_path))
    cache = DynamicCache(config=model.config)
    for layer in cache.layers:
        layer.activate_past_recording()
    with pytest.raises(ValueError, match="a cache that goes back: a state is that of its last"):
        model(ROWS[2], **dict.fromkeys(CACHE_NAMES[1:], cache))


@torch.no_grad()
def test_other_caches_are_refused(tmp_path: Path) -> None:
    model = attach(stock("qwen3_next", tmp_path))
    with pytest.raises(ValueError, match=r"no place for states: .* DynamicCache\(config=model"):
        model(ROWS[2], past_key_values=DynamicCache())
    cache = model(ROWS[2], use_cache=True).past_key_values
    with pytest.raises(ValueError, match="it is of 1 sequences, and there are 2"):
        model(torch.cat((ROWS[2], ROWS[2])), past_key_values=cache)


@torch.no_grad()
@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"attention_mask": torch.tensor([[0, 1]])}, r"shape \[1, 2\]: there are 1 sequences of 3"),
        ({"attention_mask": torch.ones(2, 3)}, r"shape \[2, 3\]: there are 1 sequences of 3"),
        ({"attention_mask": torch.ones(1, 1, 3, 3)}, "only 2D masks with padding at the ends"),
        ({"attention_mask": torch.tensor([[1, 0, 1]])}, "there is some between the tokens"),
        ({"position_ids": torch.tensor([[0, 0, 1]])}, "must count from 0 at the first token"),
        ({"seq_idx": torch.tensor([[0, 0, 1]])}, "seq_idx: packed sequences are not specified"),
    ],
)
def test_what_a_model_of_states_alone_would_not_see_is_refused(
    tmp_path: Path, changed: dict[str, Any], reason: str
) -> None:
    model = attach(stock("mamba2", tmp_path))
    with pytest.raises(ValueError, match=reason):
        model(ROWS[2], **changed)


@torch.no_grad()
def test_a_prompt_that_is_padded_on_the_right_cannot_go_on(tmp_path: Path) -> None:
    model = attach(stock("mamba2", tmp_path))
    with pytest.raises(ValueError, match="padded on the right cannot go on"):
        model.generate(
            ROWS[2], attention_mask=torch.tensor([[1, 1, 0]]), max_new_tokens=4, do_sample=False
        )


@torch.no_grad()
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda model: model.half(), "packed: leave it in torch.bfloat16, in which it was"),
        (lambda model: model.train(), r"training mode: call eval\(\)"),
    ],
)
def test_what_is_changed_later_is_refused(tmp_path: Path, change: Any, reason: str) -> None:
    model = change(attach(stock("mamba2", tmp_path)))
    with pytest.raises(ValueError, match=reason):
        model(ROWS[2])


@torch.no_grad()
def test_heads_of_values_may_be_as_many_as_those_of_keys(tmp_path: Path) -> None:
    config = config_of("qwen3_next")
    config.linear_num_value_heads = config.linear_num_key_heads
    write_checkpoint(random_model(config), tmp_path, None)
    rounded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16).eval()
    expected = rounded(ROWS[1]).logits
    assert (attach(rounded)(ROWS[1]).logits - expected).norm() < 0.1 * expected.norm()


@torch.no_grad()
def test_a_layer_that_computes_something_else_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model: Any = stock("mamba2", tmp_path)
    mixer = type(model.backbone.layers[0].mixer)
    own = mixer.forward
    monkeypatch.setattr(mixer, "forward", lambda *given, **named: 2 * own(*given, **named))
    with pytest.raises(ValueError, match=r"layers\.0\.mixer \(Mamba2Mixer\): it is not specified"):
        attach(model)
