"""``vllm.entrypoints.launchers`` and ``serve``: the bodies of a server's routes.

Every command of ``vllm`` imports this; what reads bodies is loaded by those that serve, since it
takes seconds to import.
"""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from fastapi import FastAPI, Request

from vllm.fork.flags.server_flags import ServerFlags
from vllm.fork.processes.shutdown import RefusesAtEnd
from vllm.fork.requests.checked_bodies import check_bodies
from vllm.fork.requests.json_bodies import check_json_bodies

if TYPE_CHECKING:
    from vllm.hf_compat.server.routes import Invocation

__all__ = ["accept_hf_bodies", "invocation_types"]


def accept_hf_bodies(app: FastAPI, args: Namespace) -> None:
    """As `routes.accept_hf_bodies`; `check_json_bodies` if the server is deterministic alone, and
    `check_bodies` and `RefusesAtEnd` without flags, too.
    """
    from vllm.hf_compat.server import routes

    flags = ServerFlags.of(args)
    check_bodies(app)
    if flags.deterministic and not flags.hf_compat:  # which looks at more than that
        check_json_bodies(app)
    routes.accept_hf_bodies(app, args)
    app.add_middleware(RefusesAtEnd)


def invocation_types(upstream: list[Invocation], raw_request: Request) -> list[Invocation]:
    """As `routes.invocation_types`."""
    from vllm.hf_compat.server import routes

    return routes.invocation_types(upstream, raw_request)
