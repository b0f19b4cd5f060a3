"""From the digests of an answer's tokens to its receipt."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm.deterministic import NUMERICS_VERSION
from vllm.hf_compat.answers import HFOutput
from vllm.hf_compat.call.request import HFRequest
from vllm.hf_compat.receipts.wishes import deliver_receipt, expect_receipt
from vllm.receipts.parameters import parameters_of
from vllm.receipts.receipt import VERSION, make_receipt

if TYPE_CHECKING:
    from vllm.outputs import CompletionOutput
    from vllm.v1.engine import EngineCoreRequest
    from vllm.v1.engine.detokenizer import IncrementalDetokenizer
    from vllm.v1.engine.output_processor import RequestState

_KEY = "receipt_fields"
"""What a request's detokenizer is called upon to keep: upstream's state keeps no parameters."""


def begin_receipt(detokenizer: IncrementalDetokenizer, request: EngineCoreRequest) -> None:
    """Keep what the receipt of a request will say of it; nothing if it wants none.

    Args:
        detokenizer: of the request, which lives as long.
        request: as it goes to the engine.
    """
    params = request.sampling_params
    said = HFRequest.of(params).receipt
    if params is None or said is None:
        return
    vars(detokenizer)[_KEY] = {
        "version": VERSION,
        "numerics": NUMERICS_VERSION,
        "model": {"name": said["model"]},
        "flags": said["flags"],
        "prompt": list(request.prompt_token_ids or []),
        "parameters": parameters_of(params),
    }
    assert request.external_req_id is not None
    expect_receipt(request.external_req_id)


def with_receipt(state: RequestState, output: CompletionOutput) -> CompletionOutput:
    """Return `output` with its receipt; itself if it is not complete, or has none.

    Args:
        state: of the request.
        output: what was made of its tokens.
    """
    fields = vars(state.detokenizer).get(_KEY) if state.detokenizer is not None else None
    if fields is None or output.finish_reason not in ("stop", "length"):
        return output
    collected = vars(state)["hf_compat"]
    tokens = list(output.token_ids)
    # The engine may have computed some rows beyond the end of the answer.
    logits = collected["digests"][: len(tokens)]
    model = {**fields["model"], **collected["model"][0]}
    finish = [output.finish_reason, output.stop_reason]
    receipt = make_receipt({**fields, "model": model}, tokens, logits, finish)
    parent = state.parent_req
    request_id = state.external_req_id if parent is None else parent.external_req_id
    deliver_receipt(request_id, output.index, receipt)
    return HFOutput.of(output, receipt=receipt, logits_digests=logits)
