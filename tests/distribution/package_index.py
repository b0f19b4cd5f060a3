"""Package indexes on the loopback interface, and small packages to put into them."""

from __future__ import annotations

import hashlib
import http.server
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, unquote

from tests.distribution.fake_repository import write_wheel


class Index:
    """An index as pip knows them (PEP 503), of the wheels in a folder.

    Attributes:
        url: of the index.
        behaviour: "answers", "slow" (after two seconds), "hangs" (never), "refuses" (403), or
            "absent" (404).
        asked: the names of packages that pip asked for.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.behaviour = "answers"
        self.asked: list[str] = []
        self.closing = threading.Event()
        index = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                index.answer(self)

            def log_message(self, *arguments: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}/simple"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def answer(self, request: http.server.BaseHTTPRequestHandler) -> None:
        name = unquote(request.path).strip("/").rpartition("/")[2]
        if name.endswith(".whl"):
            return self._send(request, (self.folder / name).read_bytes(), "application/zip")
        self.asked.append(name)
        if self.behaviour == "hangs":
            self.closing.wait(60)
            return None
        if self.behaviour == "slow":
            time.sleep(2)
        pages = list(self._links(name))
        status = {"refuses": 403, "absent": 404}.get(self.behaviour, 200 if pages else 404)
        if status != 200:
            return request.send_error(status)
        return self._send(request, "\n".join(pages).encode(), "text/html")

    def _links(self, name: str) -> Iterator[str]:
        for wheel in sorted(self.folder.glob("*.whl")):
            if wheel.name.partition("-")[0].lower().replace("_", "-") == name:
                digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
                address = f"/files/{quote(wheel.name)}#sha256={digest}"
                yield f'<a href="{address}">{wheel.name}</a>'

    def _send(self, request: http.server.BaseHTTPRequestHandler, content: bytes, kind: str) -> None:
        request.send_response(200)
        request.send_header("Content-Type", kind)
        request.send_header("Content-Length", str(len(content)))
        request.end_headers()
        request.wfile.write(content)

    def close(self) -> None:
        self.closing.set()
        self.server.shutdown()
        self.server.server_close()


@contextmanager
def serving(folder: Path) -> Iterator[Index]:
    """Give an index of the wheels in `folder`, also of those that come later."""
    folder.mkdir(parents=True, exist_ok=True)
    index = Index(folder)
    yield index
    index.close()


def add_torch(folder: Path, version: str) -> Path:
    """Write a wheel that has of torch what the installation looks at, and return it."""
    return add_package(
        folder, "torch", version, {"torch/__init__.py": "", "torch/include/torch.h": "",
                                   "torch/lib/libtorch_cpu.so": ""})  # fmt: skip


def add_package(folder: Path, name: str, version: str, files: dict[str, str] | None = None) -> Path:
    """Write a wheel for every machine into `folder`, and return it."""
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    write_wheel(wheel, files or {f"{name}.py": ""}, requires="", entry_points="")
    return wheel
