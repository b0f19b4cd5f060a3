"""Configurations of models, of the sizes that real ones have, and engines that ask for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig

from vllm.config import VllmConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.fork.flags.fork_flags import ForkFlags
from vllm.hf_layers.definition.finding import Finding
from vllm.twin.process import Task, examine_elsewhere
from vllm.twin.setting import EngineSetting

ANY_LENGTH = 1 << 20
SIZES = {
    "hidden_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "vocab_size": 128,
}


def finding_of(
    config: PreTrainedConfig,
    dtype: str = "float32",
    max_model_len: int = ANY_LENGTH,
    **flags: Any,
) -> Finding:
    """What an engine with hf_compat, or with other flags, finds out."""
    setting = EngineSetting(ForkFlags(**(flags or {"hf_compat": True})), dtype)
    return examine_elsewhere(Task(config, setting, max_model_len)).finding


def start(config: PreTrainedConfig, folder: Path, **arguments: Any) -> VllmConfig:
    """Save a configuration, and return that of an engine that is about to start with it."""
    config.architectures = [f"{type(config).__name__.removesuffix('Config')}ForCausalLM"]
    config.save_pretrained(folder)
    chosen: dict[str, Any] = {"dtype": "bfloat16", "max_model_len": 64} | arguments
    return EngineArgs(str(folder), skip_tokenizer_init=True, **chosen).create_engine_config()
