"""What vLLM's own fields forbid is not chosen, even where nothing else is left.

They forbid a token by a logit of minus infinity, and the best of nothing but that is token 0. HF's
processors come after them and may leave nothing else, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from vllm.fork.on_device import on_device
from vllm.hf_compat.call.request import HFRequest
from vllm.hf_compat.failures import no_continuation
from vllm.hf_compat.rows.row_ids import GUIDE, split_row_id
from vllm.sampling_params import SamplingParams

if TYPE_CHECKING:
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner


@dataclass(frozen=True)
class Row:
    """A request of a batch that forbids tokens.

    Attributes:
        index: of the logits.
        request_id: of the whole request, where several rows are one.
        fields: the names of what forbids.
        is_beam: whether a search chooses its token, among others.
    """

    index: int
    request_id: str
    fields: list[str]
    is_beam: bool


class ForbiddenTokens:
    """Looks at what the requests of a runner's batch forbid.

    Args:
        runner: whose batch it is.
    """

    def __init__(self, runner: GPUModelRunner) -> None:
        self._runner = runner
        self._fields: dict[str, list[str]] = {}

    def of_step(self, logits: torch.Tensor, discarded: np.ndarray) -> Forbidden | None:
        """Return what is forbidden in this step; None if nothing can be.

        Args:
            logits: float32 [num_requests, vocab_size], after vLLM's own processors.
            discarded: bool [num_requests], whether a row's token is thrown away.
        """
        rows = [row for row in self._rows() if not discarded[row.index]]
        if not rows:
            return None
        places = on_device([row.index for row in rows], logits.device)
        return Forbidden(rows, places, torch.isneginf(logits[places]), self._runner)

    def _rows(self) -> Iterator[Row]:
        requests = self._runner.requests
        for gone in self._fields.keys() - requests.keys():
            del self._fields[gone]
        for i, req_id in enumerate(self._runner.input_batch.req_ids):
            request_id, row = split_row_id(req_id)
            params = requests[req_id].sampling_params
            if row == GUIDE or params is None:
                continue
            if req_id not in self._fields:
                self._fields[req_id] = self._forbidding(params)
            fields = self._fields[req_id]
            if len(requests[req_id].output_token_ids) >= params.min_tokens:
                fields = [field for field in fields if field != "min_tokens"]
            if fields:
                yield Row(i, request_id, fields, HFRequest.of(params).num_beams > 1)

    def _forbidding(self, params: SamplingParams) -> list[str]:
        """Return the fields that may forbid tokens."""
        names = ("allowed_token_ids", "bad_words", "min_tokens", "structured_outputs")
        fields = [name for name in names if getattr(params, name)]
        if any(bias == -math.inf for bias in (params.logit_bias or {}).values()):
            fields.append("logit_bias")
        if self._runner.model_config.logits_processors:
            fields.append("the engine's logits_processors")
        return fields


@dataclass(frozen=True)
class Forbidden:
    """What is forbidden in a step.

    Attributes:
        rows: the requests that forbid.
        places: `Row.index` of each, on the device.
        mask: bool [len(rows), vocab_size].
        runner: whose batch it is.
    """

    rows: list[Row]
    places: torch.Tensor
    mask: torch.Tensor
    runner: GPUModelRunner

    def errors(self, token_ids: torch.Tensor) -> dict[str, str]:
        """Return a sentence for each request that has nothing left to choose, by its id.

        Args:
            token_ids: int64 [num_requests], what was chosen.
        """
        chosen = self.mask.gather(1, token_ids[self.places].long()[:, None])[:, 0]
        everything = self.mask.all(dim=1)
        errors = {}
        for row, is_chosen, is_all in zip(
            self.rows, chosen.tolist(), everything.tolist(), strict=True
        ):
            if is_all or (is_chosen and not row.is_beam):
                errors[row.request_id] = self._sentence(row, is_all)
        return errors

    def _sentence(self, row: Row, is_all: bool) -> str:
        request = self.runner.requests[self.runner.input_batch.req_ids[row.index]]
        count = len(request.output_token_ids)
        if row.fields == ["structured_outputs"] and is_all:
            return no_continuation(count)
        fields = [*row.fields] if is_all else [*row.fields, "the fields of generate()"]
        verb = "forbids" if len(fields) == 1 else "forbid"
        return (
            f"No token is left to choose after {count} tokens, since {' and '.join(fields)} {verb} "
            "all of them: allow some token, or end the answer before."
        )
