"""``vllm run-batch`` with HF's names: each line's chat has the body that the server's route has.

Upstream reads all lines before it answers the first, and ends at one that it cannot read. Here a
line whose body is wrong has its reason in its place of the output file.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Awaitable, Callable
from typing import Any

from pydantic import field_validator

from vllm.entrypoints.launchers import run_batch
from vllm.exceptions import VLLMValidationError
from vllm.fork.flags.server_flags import ServerFlags
from vllm.fork.requests.json_bodies import check_integers
from vllm.hf_compat.receipts.wishes import wish_for_receipts
from vllm.hf_compat.server.body_limits import check_body
from vllm.hf_compat.server.field_names import Schema, check_names
from vllm.hf_compat.server.openai import HFChatCompletionRequest
from vllm.hf_compat.server.routes import APIS, validated

_CHAT = "/v1/chat/completions"
_OF_UPSTREAM = ("/embeddings", "/score", "/rerank", "/transcriptions", "/translations")

Handler = Callable[[Any], Awaitable[Any]]


class HFBatchRequestInput(run_batch.BatchRequestInput):
    """A line of the input file, whose body is read when its turn comes."""

    body: Any

    @field_validator("body", mode="plain")
    @classmethod
    def check_type_for_url(cls, value: Any, info: Any) -> Any:
        """Leave the bodies that generate, and those that upstream refuses, as they are."""
        if info.data.get("url", "").endswith(_OF_UPSTREAM):
            return run_batch.BatchRequestInput.check_type_for_url(value, info)
        return value


def accept_hf_lines(
    registry: dict[str, dict[str, Any]], args: Namespace
) -> type[run_batch.BatchRequestInput]:
    """Let the lines of a batch have HF's names.

    Args:
        registry: of upstream's endpoints, changed in place.
        args: the command line; nothing happens without ``--hf-compat``.

    Returns:
        The class of a line.
    """
    flags = ServerFlags.of(args)
    if not flags.hf_compat:
        return run_batch.BatchRequestInput
    registry["completions"]["wrapper_fn"] = lambda handler: _reading(handler, flags)
    return HFBatchRequestInput


def _reading(handler: Handler, flags: ServerFlags) -> Handler:
    """Return what reads a body for upstream's handler of chats."""
    schema = Schema.of((HFChatCompletionRequest,), APIS[_CHAT])

    async def read(body: Any) -> Any:
        request = validated(HFChatCompletionRequest, body)
        if request.receipt:
            raise VLLMValidationError(
                "vllm run-batch writes no receipts: leave receipt out, or use `vllm bulk "
                "--receipts`.",
                parameter="receipt",
            )
        wish_for_receipts(False)
        check_names(body, schema, _CHAT, is_strict=flags.strict_body)
        check_integers(body)
        check_body(body, flags)
        return await handler(request)

    return read
