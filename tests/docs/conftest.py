"""Engines and servers for code of the documentation."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.docs.shared import Engines, Servers


@pytest.fixture(scope="session")
def engines() -> Engines:
    from vllm import LLM

    return Engines(LLM)


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    servers = Servers(tmp_path_factory.mktemp("servers"))
    yield servers
    servers.close()


@pytest.fixture
def shared_engines(engines: Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let code that imports ``LLM`` get engines that are shared."""
    monkeypatch.setattr("vllm.LLM", engines)
