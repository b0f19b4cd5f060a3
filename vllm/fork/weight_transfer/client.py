"""The routes of a server, for a trainer that wants to know why they refuse."""

from __future__ import annotations

from typing import Any

import requests

from vllm.distributed.weight_transfer import HTTPVLLMWeightSyncClient


class RefusedError(RuntimeError):
    """A server's reason, in its words."""


class WeightSyncClient(HTTPVLLMWeightSyncClient):
    """As ``HTTPVLLMWeightSyncClient``, whose errors say the status alone.

    Args:
        base_url: of a server with ``VLLM_SERVER_DEV_MODE=1``.
        timeout: seconds.
    """

    def _post(self, path: str, json: dict[str, Any] | None = None) -> None:
        """Ask a route.

        Raises:
            RefusedError: the server has refused; its reason.
            requests.RequestException: it is gone.
        """
        answer = requests.post(f"{self.base_url}/{path}", json=json, timeout=self.timeout)
        if not answer.ok:
            raise RefusedError(f"/{path}: {_reason(answer)}")


def _reason(answer: requests.Response) -> str:
    try:
        return str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return answer.text or f"status {answer.status_code}"
