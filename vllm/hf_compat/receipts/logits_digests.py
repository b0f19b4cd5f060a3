"""Digests of the logits that tokens are chosen of, for receipts."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from vllm.fork.digests import digest
from vllm.fork.flags.fork_flags import ForkFlags
from vllm.fork.models.model_digests import digests_of
from vllm.hf_compat.call.request import HFRequest

if TYPE_CHECKING:
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner


class LogitsDigests:
    """Takes the digests of each step; nothing without receipts.

    Args:
        runner: whose batch it is.
    """

    def __init__(self, runner: GPUModelRunner) -> None:
        self._runner = runner
        self._size = ForkFlags.of(runner.vllm_config).receipt_bytes
        # hashlib lets other threads run while it reads a row.
        self._pool = ThreadPoolExecutor(min(8, os.cpu_count() or 1)) if self._size else None

    def take(
        self, logits: torch.Tensor, discarded: np.ndarray, outputs: dict[str, dict[str, Any]]
    ) -> None:
        """Add to `outputs` of each request ``digests``, of its row, and with its first token
        ``model``, the digests of the model.

        Args:
            logits: [num_requests, vocab_size] of the model, before all processors.
            discarded: bool [num_requests], whether a row's token is thrown away.
            outputs: of the requests in this step.
        """
        req_ids = self._runner.input_batch.req_ids
        if self._pool is None:
            return
        requests = self._runner.requests
        kept = [
            i
            for i, req_id in enumerate(req_ids)
            if not discarded[i] and HFRequest.has_receipt(requests[req_id].sampling_params)
        ]
        if not kept:
            return
        rows = logits[kept].float().cpu().numpy()
        found = self._pool.map(lambda row: digest(memoryview(row).cast("B"), self._size), rows)
        for i, one in zip(kept, found, strict=True):
            answer = outputs.setdefault(req_ids[i], {})
            answer.setdefault("digests", []).append(one)
            if not requests[req_ids[i]].output_token_ids:
                answer["model"] = [digests_of(self._runner.get_model())]
