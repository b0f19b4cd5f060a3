"""What is noticed of modules that are computed without being called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaModel

from vllm.fork.models.watched_modules import WatchedModules

Change = Callable[[Any, pytest.MonkeyPatch], None]


@pytest.fixture
def model() -> LlamaModel:
    return LlamaModel(
        LlamaConfig(
            hidden_size=8,
            intermediate_size=8,
            num_hidden_layers=2,
            num_attention_heads=2,
            vocab_size=10,
        )
    )


def replace(model: Any, patch: pytest.MonkeyPatch) -> None:
    model.layers[1].mlp.act_fn = nn.ReLU()


def give_forward(model: Any, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(model.layers[1].mlp, "forward", lambda x: x)


def patch_class(model: Any, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(type(model.norm), "forward", lambda self, x: x)


def change_epsilon(model: Any, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(model.layers[1].post_attention_layernorm, "variance_epsilon", 1.0)


def change_kind(model: Any, patch: pytest.MonkeyPatch) -> None:
    """As ``torch.nn.utils.parametrize`` does."""
    projection = model.layers[1].mlp.up_proj
    patch.setattr(projection, "__class__", type("Parametrized", (nn.Linear,), {}))


CHANGES = [replace, give_forward, patch_class, change_epsilon, change_kind]


@pytest.mark.parametrize("change", CHANGES)
def test_changes(change: Change, model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = WatchedModules.of_decoder(model)
    assert watched.are_unchanged
    kept = model.layers[1].mlp.act_fn
    with monkeypatch.context() as patch:
        change(model, patch)
        assert not watched.are_unchanged
    model.layers[1].mlp.act_fn = kept
    assert watched.are_unchanged


@pytest.mark.parametrize("register", ["register_forward_hook", "register_forward_pre_hook"])
def test_hooks(register: str, model: Any) -> None:
    watched = WatchedModules.of_decoder(model)
    assert watched.are_unchanged
    handle = getattr(model.layers[0].self_attn.q_proj, register)(lambda *_: None)
    assert not watched.are_unchanged
    handle.remove()
    assert watched.are_unchanged


def test_what_an_engine_gives_its_modules_while_it_is_made(model: Any) -> None:
    watched = WatchedModules.of_decoder(model)
    vars(model.norm)["forward"] = torch.nn.Identity()
    assert watched.are_unchanged
    del vars(model.norm)["forward"]
    assert not watched.are_unchanged
