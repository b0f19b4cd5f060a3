"""Weights and settings that a checkpoint has, or lacks, are those of ``from_pretrained``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from tests.loaded_models import engine_config, model_of
from vllm.fork.flags.fork_flags import ForkFlags
from vllm.fork.startup.checkpoint_files import use_hf_files
from vllm.hf_layers.definition.attn_implementation import attn_implementation

SIZES = {
    "hidden_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "vocab_size": 128,
    "max_position_embeddings": 128,
    "attention_bias": True,
}
WHOLE = "model.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    LlamaForCausalLM(LlamaConfig(**SIZES)).bfloat16().save_pretrained(tmp_path)
    return tmp_path


@pytest.fixture
def memory_of_nan() -> Iterator[None]:
    """What is not initialised is NaN."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


def loaded(folder: Path) -> Any:
    return model_of(engine_config(folder, hf_compat=True, skip_tokenizer_init=True))


def write_others(folder: Path, name: str) -> None:
    others = {key: one + 1 for key, one in load_file(folder / WHOLE).items()}
    save_file(others, folder / name, {"format": "pt"})


@pytest.mark.parametrize("name", ["another.safetensors", "zz.safetensors"])
def test_other_files_beside_the_one_are_not_read(name: str, folder: Path, one_rank: None) -> None:
    write_others(folder, name)
    weight = loaded(folder).model.norm.weight
    assert torch.equal(weight, LlamaForCausalLM.from_pretrained(folder).model.norm.weight)


def test_an_index_beside_the_one_file_is_not_read(folder: Path, one_rank: None) -> None:
    part = "model-00001-of-00001.safetensors"
    write_others(folder, part)
    places = dict.fromkeys(load_file(folder / WHOLE), part)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    weight = loaded(folder).model.norm.weight
    assert torch.equal(weight, LlamaForCausalLM.from_pretrained(folder).model.norm.weight)


def test_parts_of_an_index_are_read(folder: Path, one_rank: None) -> None:
    part = "model-00001-of-00001.safetensors"
    weights = load_file(folder / WHOLE)
    (folder / WHOLE).rename(folder / part)
    index = {"weight_map": dict.fromkeys(weights, part)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert torch.equal(loaded(folder).model.norm.weight, weights["model.norm.weight"])


def test_files_are_those_of_the_checkpoint_that_is_read(folder: Path, tmp_path: Path) -> None:
    """New weights may come from a folder of another form."""
    config: Any = engine_config(folder, hf_compat="rules", skip_tokenizer_init=True)
    parts = tmp_path / "parts"
    parts.mkdir()
    model = torch.nn.Module()
    for checkpoint, expected in ((None, [WHOLE]), (str(parts), None), (str(folder), [WHOLE])):
        use_hf_files(model, config, checkpoint)
        assert model.allow_patterns_overrides == expected


@pytest.mark.parametrize("name", ["k_proj", "o_proj"])
def test_a_bias_that_is_missing_is_zero(
    name: str, folder: Path, one_rank: None, memory_of_nan: None
) -> None:
    weights = load_file(folder / WHOLE)
    weights = {key: one + 1 if key.endswith("bias") else one for key, one in weights.items()}
    del weights[f"model.layers.0.self_attn.{name}.bias"]
    save_file(weights, folder / WHOLE, {"format": "pt"})
    theirs = LlamaForCausalLM.from_pretrained(folder).model.layers[0].self_attn
    ours = loaded(folder).model.layers[0].self_attn
    assert torch.equal(ours.o_proj.bias, theirs.o_proj.bias)
    parts = [theirs.q_proj.bias, theirs.k_proj.bias, theirs.v_proj.bias]
    assert torch.equal(ours.qkv_proj.bias, torch.cat(parts))


@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation"])
def test_attention_that_the_configuration_names(key: str, folder: Path) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: "eager"}))
    theirs = LlamaForCausalLM.from_pretrained(folder).config._attn_implementation
    config = engine_config(folder, hf_compat=True, skip_tokenizer_init=True).model_config
    assert attn_implementation(config) == theirs == "eager"
    strict: Any = {"hf_compat": "strict", "skip_tokenizer_init": True}
    assert ForkFlags.of(engine_config(folder, **strict)).hf_compat == "exact"
    with pytest.raises(ValueError, match="does not go with attn_implementation='eager'"):
        engine_config(folder, model_impl="vllm", **strict)
    sdpa: Any = {"hf_overrides": {"attn_implementation": "sdpa"}}
    assert ForkFlags.of(engine_config(folder, **strict, **sdpa)).hf_compat == "strict"
    own: Any = {"hf_overrides": {"attn_implementation": None}}
    config = engine_config(folder, hf_compat=True, skip_tokenizer_init=True, **own).model_config
    assert attn_implementation(config) is None
