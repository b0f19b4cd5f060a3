"""Layers and models of vLLM in the test's own process, without an engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
import torch
from torch import nn

from tools.make_random_model import make_random_model

if TYPE_CHECKING:
    from vllm.config import VllmConfig

LoadModel = Callable[..., tuple[nn.Module, Path]]


def engine_config(folder: Path, **arguments: Any) -> VllmConfig:
    from vllm.engine.arg_utils import EngineArgs

    settings = {"dtype": "bfloat16", "enforce_eager": True, "kv_cache_memory_bytes": 1 << 28}
    return EngineArgs(str(folder), **settings | arguments).create_engine_config()


def model_of(config: VllmConfig) -> nn.Module:
    """Load a model; for compilation, vLLM's Transformers backend would change Transformers' own
    class, and whatever test of this process asked Transformers for that model next would fail."""
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.model_loader import get_model
    from vllm.model_executor.models.transformers.base import Base

    torch.accelerator.empty_cache = lambda: None  # as the CPU worker does
    stock_class = mock.patch.object(Base, "_decorate_for_torch_compile")
    with set_current_vllm_config(config), stock_class:
        return get_model(vllm_config=config)


@pytest.fixture(scope="session")
def load_model(one_rank: None, tmp_path_factory: pytest.TempPathFactory) -> LoadModel:
    """Loads a narrow random model: ``load_model("gemma2-2b", hf_compat=True)``; and its folder."""
    folders: dict[str, Path] = {}

    def load(shape: str, **arguments: Any) -> tuple[nn.Module, Path]:
        if shape not in folders:
            folders[shape] = tmp_path_factory.mktemp("models") / shape
            make_random_model(shape, folders[shape], num_layers=1, narrow=True)
        return model_of(engine_config(folders[shape], **arguments)), folders[shape]

    return load
