"""Attached models whose layers keep states: a token has the same bits in any batch and cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, DynamicCache, PreTrainedModel

from tests.deterministic.models import token_ids
from tests.deterministic.states_models import CHANGES, write_model
from tests.kernels.portable_cases import assert_same
from vllm.deterministic import attach
from vllm.hf_layers.engine.exact_models import CACHE_NAMES, cache_name

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
def test_a_layer_that_computes_something_else_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model: Any = stock("mamba2", tmp_path)
    mixer = type(model.backbone.layers[0].mixer)
    own = mixer.forward
    monkeypatch.setattr(mixer, "forward", lambda *given, **named: 2 * own(*given, **named))
    with pytest.raises(ValueError, match=r"layers\.0\.mixer \(Mamba2Mixer\): it is not specified"):
        attach(model)
