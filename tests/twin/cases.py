"""Configurations of models, of the sizes that real ones have, and engines that ask for them."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedConfig

from vllm.fork.flags.fork_flags import ForkFlags
from vllm.hf_layers.definition.finding import Finding
from vllm.twin.process import Task, examine_elsewhere
from vllm.twin.setting import EngineSetting

ANY_LENGTH = 1 << 20


def finding_of(
    config: PreTrainedConfig,
    dtype: str = "float32",
    max_model_len: int = ANY_LENGTH,
    **flags: Any,
) -> Finding:
    """What an engine with hf_compat, or with other flags, finds out."""
    setting = EngineSetting(ForkFlags(**(flags or {"hf_compat": True})), dtype)
    return examine_elsewhere(Task(config, setting, max_model_len)).finding
