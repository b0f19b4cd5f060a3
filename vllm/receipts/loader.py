"""Loads a checkpoint as vLLM does, and takes the digest of its tensors on the way."""

from __future__ import annotations

import json
from collections.abc import Generator
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import nn

from vllm.fork.digests import digest
from vllm.fork.model_digests import remember_digests
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from vllm.config import LoadConfig, ModelConfig

_NOT_OF_THE_MODEL = ("_name_or_path", "transformers_version", "dtype", "torch_dtype")
_SIZE = 16


class DigestingLoader(DefaultModelLoader):
    """``DefaultModelLoader``, after which `vllm.fork.model_digests` knows the model's digests.

    Every rank sees whole tensors by the checkpoint's names, so that neither the number of ranks nor
    the layers that vLLM makes of them matter.

    Args:
        load_config: whose format is this loader's name.
    """

    def __init__(self, load_config: LoadConfig) -> None:
        super().__init__(replace(load_config, load_format="auto"))
        self._tensors: dict[str, str] = {}

    def get_all_weights(
        self, model_config: ModelConfig, model: nn.Module
    ) -> Generator[tuple[str, torch.Tensor], None, None]:
        """As ``DefaultModelLoader.get_all_weights``."""
        for name, tensor in super().get_all_weights(model_config, model):
            self._tensors[name] = tensor_digest(tensor)
            yield name, tensor

    def load_weights(self, model: nn.Module, model_config: ModelConfig) -> None:
        """As ``DefaultModelLoader.load_weights``."""
        self._tensors.clear()
        super().load_weights(model, model_config)
        remember_digests(
            model,
            weights=digest_of_names(self._tensors),
            config=config_digest(model_config.hf_config),
        )


def tensor_digest(tensor: torch.Tensor) -> str:
    """Return the digest of a tensor's dtype, shape and bytes, 32 hexadecimal digits."""
    head = json.dumps([str(tensor.dtype).removeprefix("torch."), list(tensor.shape)])
    values = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return digest(head.encode() + digest(memoryview(values.numpy()), _SIZE), _SIZE).hex()


def digest_of_names(tensors: dict[str, str]) -> str:
    """Return the digest of tensors by their names, 32 hexadecimal digits; order does not matter."""
    text = json.dumps(sorted(tensors.items()), separators=(",", ":"))
    return digest(text.encode(), _SIZE).hex()


def config_digest(config: PretrainedConfig) -> str:
    """Return the digest of what a configuration says about the model, 32 hexadecimal digits."""
    said = {
        name: value
        for name, value in config.to_diff_dict().items()
        if name not in _NOT_OF_THE_MODEL
    }
    text = json.dumps(said, sort_keys=True, separators=(",", ":"), default=str)
    return digest(text.encode(), _SIZE).hex()
