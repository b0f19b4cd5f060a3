"""Loads a checkpoint as vLLM does, and takes the digest of its tensors on the way."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import nn

from vllm.fork.models.model_digests import remember_digests
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
from vllm.receipts.weights import config_digest, digest_of_names, tensor_digest

if TYPE_CHECKING:
    from vllm.config import LoadConfig, ModelConfig


class DigestingLoader(DefaultModelLoader):
    """``DefaultModelLoader``, after which `model_digests` knows the model's digests.

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
