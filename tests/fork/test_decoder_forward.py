"""Where a model's layers are computed as one operator."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.loaded_models import engine_config, model_of
from tools.make_random_model import make_random_model
from vllm.fork.models.decoder_forward import DecoderForward, use_one_operator


@pytest.mark.parametrize(
    ("changes", "is_used"),
    [({}, True), ({"kv_transfer_config": "another engine"}, False), ({"pipeline": 2}, False)],
    ids=["one engine", "another engine is sent keys", "pipeline of ranks"],
)
def test_the_operator_is_used_where_nothing_else_is_a_layers_business(
    changes: dict[str, Any], is_used: bool, one_rank: None, tmp_path: Path
) -> None:
    make_random_model("tinyllama-1.1b", tmp_path, num_layers=1, narrow=True)
    model: Any = model_of(engine_config(tmp_path, dtype="bfloat16"))
    config: Any = SimpleNamespace(
        kv_transfer_config=changes.get("kv_transfer_config"),
        parallel_config=SimpleNamespace(pipeline_parallel_size=changes.get("pipeline", 1)),
    )
    use_one_operator(model, config, lambda decoder: None)
    assert isinstance(vars(model.model).get("forward"), DecoderForward) == is_used
