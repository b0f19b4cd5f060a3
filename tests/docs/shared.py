"""What code that is run for a test gets instead of its own: engines and servers that are shared.

Code of documentation starts an engine with ``LLM(...)``, or a server with ``vllm serve ...``. An
engine with the same arguments was the same one before, so it is started once.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.engines import MODEL
from tests.server.conftest import Server, start_command, wait_until_healthy

if TYPE_CHECKING:
    from vllm import LLM

HUB = {"facebook/opt-125m": str(MODEL), "Qwen/Qwen3-0.6B": str(MODEL)}
"""Models that pages name, and what stands in for them where there is no network."""


class Engines:
    """Makes engines, and keeps the last ones.

    Args:
        make: vLLM's own class.
    """

    _KEPT = 2

    def __init__(self, make: type[LLM]) -> None:
        self._make = make
        self._engines: dict[str, LLM] = {}

    def __call__(self, model: str, **arguments: Any) -> LLM:
        """Return an engine with these arguments, of a stand-in for a model of the Hub."""
        key = repr((model, sorted(arguments.items())))
        if key not in self._engines:
            while len(self._engines) >= self._KEPT:
                self._engines.pop(next(iter(self._engines)))
            small = {"max_model_len": 2048, "kv_cache_memory_bytes": 1 << 28}
            self._engines[key] = self._make(
                HUB.get(model, model), **{**small, "enforce_eager": True, **arguments}
            )
        return self._engines[key]


class Servers:
    """Starts servers with a port of their own, in the repository's folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._servers: dict[str, Server] = {}

    def address_of(self, command: str) -> str:
        """Return where the server of a command line answers; it is started if it does not run."""
        if command not in self._servers:
            self.close()
            server = start_command(shlex.split(command), self._folder)
            self._servers[command] = server
            wait_until_healthy(server)
        return self._servers[command].address

    def close(self) -> None:
        """End all servers."""
        for server in self._servers.values():
            server.process.terminate()
            server.process.wait(timeout=60)
        self._servers.clear()
