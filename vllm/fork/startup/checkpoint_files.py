"""Which of a checkpoint's files are read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.transformers_utils.repo_utils import file_or_path_exists

if TYPE_CHECKING:
    from vllm.config import VllmConfig

_FIRST = "model.safetensors"
_FORMATS = ("auto", "hf", "safetensors", "fastsafetensors")


def use_hf_files(model: Any, vllm_config: VllmConfig, checkpoint: str | None = None) -> None:
    """Let vLLM read the one file that ``from_pretrained`` reads; it would read all that there are,
    or those of an index.

    Args:
        model: of vLLM, before its weights are read.
        vllm_config: of its engine.
        checkpoint: a folder, or a name on the Hub; None for the engine's own.
    """
    config = vllm_config.model_config
    is_of_class = getattr(type(model), "allow_patterns_overrides", None) is not None
    if vllm_config.load_config.load_format not in _FORMATS or is_of_class:
        return
    is_there = file_or_path_exists(checkpoint or config.model, _FIRST, config.revision)
    model.allow_patterns_overrides = [_FIRST] if is_there else None  # DefaultModelLoader reads it
