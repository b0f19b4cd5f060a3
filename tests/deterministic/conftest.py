"""Fixtures of several tests of deterministic mode."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture
def configured(one_rank: None) -> Iterator[Any]:
    """The configuration of an engine, for layers of vLLM that are made by themselves."""
    from tests.engines import MODEL
    from vllm.config import set_current_vllm_config
    from vllm.engine.arg_utils import EngineArgs

    args = EngineArgs(str(MODEL), dtype="bfloat16", deterministic=True)
    config = args.create_engine_config()
    with set_current_vllm_config(config):
        yield config
