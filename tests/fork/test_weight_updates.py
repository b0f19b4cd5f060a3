"""What would change the weights of a running engine is refused before it changes anything."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.engines import MODEL, bundled_engine
from vllm.config import WeightTransferConfig
from vllm.engine.arg_utils import EngineArgs

FLAGS: list[tuple[dict[str, Any], str]] = [
    ({"deterministic": True, "dtype": "bfloat16"}, "deterministic=True"),
    ({"hf_compat": True, "dtype": "bfloat16"}, "hf_compat=True"),
    ({"hf_compat": "exact", "dtype": "float32"}, 'hf_compat="exact"'),
]


def load_zeros(model: Any) -> None:
    model.load_weights([(name, torch.zeros_like(p)) for name, p in model.named_parameters()])


@pytest.mark.parametrize(("arguments", "flag"), FLAGS, ids=[flag for _, flag in FLAGS])
def test_every_way_is_refused_and_answers_stay(
    monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any], flag: str
) -> None:
    monkeypatch.setenv("VLLM_ALLOW_INSECURE_SERIALIZATION", "1")
    message = f"the weights of an engine with {flag} cannot be changed, since .*start a new engine"
    with bundled_engine(**arguments, max_num_batched_tokens=1024) as llm:
        before = llm.generate("def f(", use_tqdm=False)[0].outputs[0].token_ids
        for change in (
            lambda: llm.collective_rpc("reload_weights"),
            lambda: llm.collective_rpc("reload_weights", kwargs={"weights_path": str(MODEL)}),
            lambda: llm.apply_model(load_zeros),
            lambda: llm.sleep(level=2),  # they would have to be given again
        ):
            with pytest.raises(Exception, match=message):
                change()
        llm.sleep(level=1)
        llm.wake_up()
        after = llm.generate("def f(", use_tqdm=False)[0].outputs[0].token_ids
    assert list(after) == list(before)


@pytest.mark.parametrize(
    ("arguments", "flag"), [*FLAGS, ({"split_qkv": True, "dtype": "float32"}, "split_qkv=True")]
)
def test_an_engine_that_is_to_be_sent_weights_does_not_start(
    arguments: dict[str, Any], flag: str
) -> None:
    transfer = WeightTransferConfig(backend="ipc")
    with pytest.raises(ValueError, match=f"^weight_transfer_config: the weights of .* {flag} can"):
        EngineArgs(str(MODEL), **arguments, weight_transfer_config=transfer).create_engine_config()
