"""Layers and models of vLLM in the test's own process, without an engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.model_loader import get_model

    torch.accelerator.empty_cache = lambda: None  # as the CPU worker does
    with set_current_vllm_config(config):
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


@pytest.fixture
def adversarial() -> Callable[[tuple[int, ...], torch.dtype], torch.Tensor]:
    """Makes random tensors with denormal, huge, zero and equal elements among the usual ones."""

    def make(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        generator = torch.Generator().manual_seed(sum(shape))
        x = torch.randn(shape, generator=generator)
        x *= torch.exp2(torch.randint(-12, 8, (shape[0], *[1] * (len(shape) - 1)),
                                      generator=generator))  # fmt: skip
        flat = x.view(-1)
        flat[::97] = torch.finfo(dtype).smallest_normal / 4
        flat[1::101] = 200.0
        flat[2::103] = 0.0
        flat[3::107] = -0.0
        x[-1] = 1.0
        return x.to(dtype)

    return make
