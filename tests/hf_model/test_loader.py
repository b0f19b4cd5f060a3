"""What exact mode loads: the model of the configuration that the engine has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, PreTrainedModel

from tests.twin.cases import SIZES
from vllm.config import LoadConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.hf_layers.engine.engine_args import LOAD_FORMAT
from vllm.model_executor.model_loader import get_model_loader

OVERRIDES: dict[str, Any] = {
    "rms_norm_eps": 0.5,
    "rope_scaling": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    model: Any = AutoModelForCausalLM.from_config(LlamaConfig(**SIZES))
    model.save_pretrained(tmp_path)
    return tmp_path


def loaded(folder: Path, **arguments: Any) -> PreTrainedModel:
    args = EngineArgs(
        str(folder), dtype="float32", hf_compat="exact", skip_tokenizer_init=True, **arguments
    )
    loader: Any = get_model_loader(LoadConfig(load_format=LOAD_FORMAT))
    model: PreTrainedModel = loader._from_pretrained(args.create_engine_config().model_config)
    return model


@torch.inference_mode()
def logits(model: PreTrainedModel) -> torch.Tensor:
    found: torch.Tensor = model.eval()(torch.arange(4, 30)[None]).logits
    return found


def by_dict(folder: Path) -> dict[str, Any]:
    return {"hf_overrides": OVERRIDES}


def by_function(folder: Path) -> dict[str, Any]:
    def change(config: Any) -> Any:
        config.update(OVERRIDES)
        return config

    return {"hf_overrides": change}


def by_path(folder: Path) -> dict[str, Any]:
    """A configuration of another folder."""
    other = folder / "other"
    config = AutoConfig.from_pretrained(folder)
    config.update(OVERRIDES)
    config.save_pretrained(other)
    return {"hf_config_path": str(other)}


@pytest.mark.parametrize("given", [by_dict, by_function, by_path])
def test_what_is_overridden_reaches_the_model(given: Any, folder: Path) -> None:
    config = AutoConfig.from_pretrained(folder)
    config.update(OVERRIDES)
    wanted = logits(AutoModelForCausalLM.from_pretrained(folder, config=config))
    assert torch.equal(logits(loaded(folder, **given(folder))), wanted)
    assert not torch.equal(logits(loaded(folder)), wanted)
