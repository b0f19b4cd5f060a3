"""Loads a model with Transformers instead of vLLM's own classes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn
from transformers import AutoModelForCausalLM

from vllm.hf_numerics.attn_implementation import attn_implementation
from vllm.model_executor.model_loader.base_loader import BaseModelLoader

if TYPE_CHECKING:
    from vllm.config import ModelConfig, VllmConfig


class ExactLoader(BaseModelLoader):
    """``AutoModelForCausalLM.from_pretrained``, as a user of Transformers calls it."""

    def download_model(self, model_config: ModelConfig) -> None:
        """Transformers downloads what it loads."""

    def load_weights(self, model: nn.Module, model_config: ModelConfig) -> None:
        """Refuse: weights come with the model.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError('hf_compat="exact" does not replace the weights of a model.')

    def load_model(
        self, vllm_config: VllmConfig, model_config: ModelConfig, prefix: str = ""
    ) -> nn.Module:
        """Return the model (``BaseModelLoader.load_model``)."""
        from vllm.hf_exact.model import ExactModel

        arguments: dict[str, Any] = {}
        if implementation := attn_implementation(model_config):
            arguments["attn_implementation"] = implementation
        model = AutoModelForCausalLM.from_pretrained(
            model_config.model,
            revision=model_config.revision,
            code_revision=model_config.code_revision,
            trust_remote_code=model_config.trust_remote_code,
            cache_dir=self.load_config.download_dir,
            dtype=model_config.dtype,
            **arguments,
        )
        return ExactModel(model.to(vllm_config.device_config.device).eval(), vllm_config).eval()
