"""A server lives on when an adapter's files are no adapter any more."""

from __future__ import annotations

from pathlib import Path

import openai
import pytest

from tests.adapters import make_adapter
from tests.server.conftest import running_server


def test_an_adapter_that_was_forgotten_and_has_changed(tmp_path: Path) -> None:
    """There is room for one, and the second takes the place of the first at the start."""
    folders = {name: make_adapter("plain", tmp_path / name) for name in ("first", "second")}
    modules = [f"{name}={folder}" for name, folder in folders.items()]
    flags = ["--hf-compat", "--dtype", "float32", "--enable-lora", "--max-loras", "1"]
    with running_server(tmp_path, *flags, "--lora-modules", *modules) as address:
        client = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)

        def text(model: str) -> str:
            answer = client.completions.create(model=model, prompt="def f(", max_tokens=64)
            return answer.choices[0].text

        expected = text("second")
        make_adapter("bias", folders["first"])
        with pytest.raises(openai.BadRequestError, match=r"'first' cannot be served \(Adapter b"):
            text("first")
        assert text("second") == expected != text("tiny")
