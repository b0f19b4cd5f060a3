"""Loads a model with Transformers instead of vLLM's own classes."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from vllm.fork.startup.torch_switches import use_fresh_switches
from vllm.hf_layers.definition.attn_implementation import attn_implementation
from vllm.hf_layers.definition.configuration import config_of, own_classes
from vllm.logger import init_logger
from vllm.model_executor.model_loader.base_loader import BaseModelLoader

if TYPE_CHECKING:
    from vllm.config import ModelConfig, VllmConfig

logger = init_logger(__name__)


class ExactLoader(BaseModelLoader):
    """``AutoModelForCausalLM.from_pretrained``, as a user of Transformers calls it."""

    def download_model(self, model_config: ModelConfig) -> None:
        """Transformers downloads what it loads."""

    def load_weights(self, model: Any, model_config: ModelConfig) -> None:
        """Load the weights of a checkpoint into a model (``BaseModelLoader.load_weights``)."""
        model.load_weights(self.get_all_weights(model_config, model))

    def get_all_weights(
        self, model_config: ModelConfig, model: nn.Module
    ) -> Generator[tuple[str, torch.Tensor], None, None]:
        """Yield a checkpoint's weights by the names that Transformers' model has for them.

        Transformers reads, merges and renames what is in the files, so that the whole of them is in
        memory meanwhile.
        """
        yield from self._from_pretrained(model_config).state_dict().items()

    def load_model(
        self, vllm_config: VllmConfig, model_config: ModelConfig, prefix: str = ""
    ) -> nn.Module:
        """Return the model (``BaseModelLoader.load_model``), in a process whose switches are
        PyTorch's own from now on.

        Raises:
            RuntimeError: see `use_fresh_switches`.
        """
        from vllm.hf_model.model import ExactModel

        _undo_switches()
        model = self._from_pretrained(model_config)
        return ExactModel(model.to(vllm_config.device_config.device).eval(), vllm_config).eval()

    def _from_pretrained(self, model_config: ModelConfig) -> PreTrainedModel:
        arguments: dict[str, Any] = {}
        if implementation := attn_implementation(model_config):
            arguments["attn_implementation"] = implementation
        if model_config.hf_overrides or model_config.hf_config_path:
            arguments["config"] = config_of(model_config)
        with own_classes():
            return AutoModelForCausalLM.from_pretrained(
                model_config.model,
                revision=model_config.revision,
                code_revision=model_config.code_revision,
                trust_remote_code=model_config.trust_remote_code,
                token=model_config.hf_token,
                cache_dir=self.load_config.download_dir,
                dtype=model_config.dtype,
                **arguments,
            )


def _undo_switches() -> None:
    """Set PyTorch's switches as `generate()` finds them, before anything is computed."""
    changed = use_fresh_switches()
    if changed:
        logger.info(
            'hf_compat="exact": PyTorch\'s switches are set as in a fresh process: %s.',
            ", ".join(f"{name}={value} (was {old})" for name, (old, value) in changed.items()),
        )
