"""Engines that tests start in their own process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm import LLM

ROOT = Path(__file__).resolve().parent.parent
MODEL = ROOT / "models" / "tiny-python-llama"


@contextmanager
def bundled_engine(**arguments: Any) -> Iterator[LLM]:
    """The bundled model with hf_compat, float32; chunks are short enough to split prompts."""
    from vllm import LLM

    settings: dict[str, Any] = {
        "dtype": "float32",
        "hf_compat": True,
        "max_model_len": 1024,
        "max_num_batched_tokens": 256,
        "enforce_eager": True,
        "disable_log_stats": False,
    }
    if "num_gpu_blocks_override" not in arguments:
        settings["kv_cache_memory_bytes"] = 1 << 29
    llm = LLM(**{"model": str(MODEL), **settings, **arguments})
    yield llm
    llm.llm_engine.engine_core.shutdown()
