"""A path to nothing is refused before the Hub is asked for it."""

from __future__ import annotations

from pathlib import Path

import huggingface_hub.constants
import pytest

from vllm.engine.arg_utils import EngineArgs
from vllm.fork.startup import model_path
from vllm.fork.startup.model_path import check_model_path

PATHS = ["./there", "/there", "../x/there", "~/there", "models/here/there"]


@pytest.mark.parametrize("model", PATHS)
def test_paths_to_nothing(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # Without a network upstream looks into its cache first, and says what a repository's name is.
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    with pytest.raises(ValueError, match=rf"^There is no model at {model} \(looked for from /"):
        EngineArgs(model, hf_compat=True).create_engine_config()


def test_what_may_be_on_a_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models" / "tiny").mkdir(parents=True)
    said: list[str] = []
    monkeypatch.setattr(model_path.logger, "warning", lambda text, *args: said.append(text % args))
    for model in ("models/tiny", "gpt2", "facebook/opt-125m", "s3://bucket/of/models"):
        check_model_path(model)
    assert said == []
    check_model_path("models/tinny")
    assert len(said) == 1
    assert said[0].startswith("There is a folder models here and no tinny in it, so models/tinny")
