"""Bodies of ``/abort_requests`` and of weights that upstream would fail on: a 400, and why.

Why: Upstream answers them with a 500, or ends the engine.
Upstream status: Bug in 0.32.0, to be reported (upstream-reports/abort-requests-body.md).
Exit condition: Upstream checks these bodies.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import MISSING
from typing import TYPE_CHECKING, Any

from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.routing import APIRoute

from vllm.fork.requests.json_bodies import why_unreadable

if TYPE_CHECKING:
    from vllm.distributed.weight_transfer.base import WeightTransferEngine

Check = Callable[[Request], Awaitable[None]]


def check_bodies(app: FastAPI) -> None:
    """Let routes of a server look at a body before they use it."""
    routes = app.router.routes
    for i, route in enumerate(routes):
        if isinstance(route, APIRoute) and (check := _CHECKS.get(route.path)):
            app.router.add_api_route(
                route.path,
                route.endpoint,
                name=route.name,
                methods=route.methods,
                dependencies=[*route.dependencies, Depends(check)],
            )
            routes[i] = routes.pop()


async def _check_ids(raw_request: Request) -> None:
    try:
        body = await raw_request.json()  # kept by the request for those who ask again
    except (ValueError, RecursionError) as error:
        raise HTTPException(400, why_unreadable(error)) from None
    ids = (body.get("request_ids") or []) if isinstance(body, dict) else None
    if not (isinstance(ids, list | str) and all(isinstance(one, str) for one in ids)):
        raise HTTPException(
            400, 'The body must be an object with a list of texts: {"request_ids": ["..."]}.'
        )


async def _takes_weights(raw_request: Request) -> None:
    _engine_of(raw_request)


async def _check_init(raw_request: Request) -> None:
    from vllm.fork.weight_transfer.group import Meeting  # takes seconds

    engine = _engine_of(raw_request)
    for info in _objects(await raw_request.json(), "init_info"):
        _try(engine.init_info_cls, info, "init_info")
        everybody = 1 + _num_workers(raw_request)
        if engine.init_info_cls is Meeting and info["world_size"] != everybody:
            raise HTTPException(
                400,
                f"init_info: world_size={info['world_size']} must be {everybody}: the trainer, and "
                f"each of the {everybody - 1} worker(s) of this engine.",
            )


async def _check_update(raw_request: Request) -> None:
    engine = _engine_of(raw_request)
    body = await raw_request.json()
    for info in _objects(body, "update_info"):
        _try(engine.update_info_cls, info, "update_info")
    updates = body.get("update_info") if isinstance(body, dict) else None
    workers = _num_workers(raw_request)
    if isinstance(updates, list) and len(updates) != workers:
        raise HTTPException(
            400,
            f"update_info has {len(updates)} objects and the engine {workers} workers: send one "
            "object for all, or a list of one for each.",
        )


def _num_workers(raw_request: Request) -> int:
    config = raw_request.app.state.engine_client.vllm_config.parallel_config
    return int(config.world_size_across_dp)


def _engine_of(raw_request: Request) -> type[WeightTransferEngine[Any, Any]]:
    """Return the class of the engine that receives weights in the workers of a server."""
    from vllm.distributed.weight_transfer import WeightTransferEngineFactory  # takes seconds

    config = raw_request.app.state.engine_client.vllm_config.weight_transfer_config
    if config is None:
        raise HTTPException(
            400,
            "This server takes no weights: start it with --weight-transfer-config "
            '\'{"backend": "gloo"}\'.',
        )
    return WeightTransferEngineFactory._registry[config.backend]()


def _objects(body: Any, field: str) -> Iterator[dict[str, Any]]:
    """Yield a field's objects; FastAPI has sentences for a field that is of another type."""
    value = body.get(field) if isinstance(body, dict) else None
    for one in value if isinstance(value, list) else [value]:
        if isinstance(one, dict):
            yield one


def _try(kind: type[Any], info: dict[str, Any], field: str) -> None:
    """Make what a worker would make of an object of a body, to see whether it can."""
    fields = [one for one in dataclasses.fields(kind) if one.init]
    needed = {one.name for one in fields if one.default is one.default_factory is MISSING}
    unknown, missing = info.keys() - {one.name for one in fields}, needed - info.keys()
    if unknown or missing:
        raise HTTPException(
            400,
            f"{field} {_listed('has no field', unknown)}{' and ' * bool(unknown and missing)}"
            f"{_listed('needs', missing)}: its fields are {', '.join(one.name for one in fields)}.",
        )
    try:
        kind(**info)
    except (TypeError, ValueError) as error:
        raise HTTPException(400, f"{field}: {error}") from None


def _listed(verb: str, names: set[str]) -> str:
    return f"{verb} {', '.join(map(repr, sorted(names)))}" if names else ""


_CHECKS: dict[str, Check] = {
    "/inference/v1/abort_requests": _check_ids,
    "/abort_requests": _check_ids,
    "/init_weight_transfer_engine": _check_init,
    "/update_weights": _check_update,
    "/start_weight_update": _takes_weights,
    "/start_draft_weight_update": _takes_weights,
    "/finish_weight_update": _takes_weights,
}
