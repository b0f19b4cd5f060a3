"""``vllm.entrypoints.launchers`` and ``serve``: the bodies of a server's routes."""

from __future__ import annotations

from argparse import Namespace

from fastapi import FastAPI

from vllm.fork.abort_bodies import check_abort_bodies
from vllm.hf_compat import routes
from vllm.hf_compat.routes import invocation_types

__all__ = ["accept_hf_bodies", "invocation_types"]


def accept_hf_bodies(app: FastAPI, args: Namespace) -> None:
    """As `routes.accept_hf_bodies`, and `check_abort_bodies` without flags, too."""
    check_abort_bodies(app)
    routes.accept_hf_bodies(app, args)
