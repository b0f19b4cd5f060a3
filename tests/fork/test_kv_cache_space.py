"""A size of the KV cache that does not count is said not to."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engines import MODEL
from vllm.engine.arg_utils import EngineArgs
from vllm.fork.startup import kv_cache_space

GIB = 1 << 30


@pytest.mark.parametrize(
    ("variable", "flags", "counts", "is_said"),
    [
        ("1", {"hf_compat": True}, GIB, True),
        ("1", {"deterministic": True, "dtype": "bfloat16"}, GIB, True),
        ("2", {"hf_compat": True}, 2 * GIB, False),  # the same size
        ("", {"hf_compat": True}, 2 * GIB, False),
        ("1", {}, GIB, False),  # upstream says nothing
    ],
)
def test_which_size_counts(
    monkeypatch: pytest.MonkeyPatch, variable: str, flags: Any, counts: int, is_said: bool
) -> None:
    said: list[str] = []
    monkeypatch.setattr(
        kv_cache_space.logger, "warning", lambda text, *args: said.append(text % args)
    )
    monkeypatch.setenv(kv_cache_space.VARIABLE, variable)
    arguments = {"dtype": "float32", "kv_cache_memory_bytes": 2 * GIB, **flags}
    config = EngineArgs(str(MODEL), **arguments).create_engine_config()
    assert config.cache_config.kv_cache_memory_bytes == counts
    expected = (
        "The environment variable VLLM_CPU_KVCACHE_SPACE=1 (GiB) is the size of the KV cache, and "
        f"kv_cache_memory_bytes={2 * GIB} does not count: unset the variable if it should."
    )
    assert said == [expected] * is_said
