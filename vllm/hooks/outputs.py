"""``vllm.v1.engine.output_processor`` and ``async_llm``: answers, and what failed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.hf_compat import answers
from vllm.hf_compat.answers import collect, with_beams
from vllm.hf_compat.failures import failure_of
from vllm.receipts.answers import begin_receipt, with_receipt

if TYPE_CHECKING:
    from vllm.outputs import CompletionOutput
    from vllm.v1.engine import EngineCoreRequest
    from vllm.v1.engine.detokenizer import IncrementalDetokenizer
    from vllm.v1.engine.output_processor import RequestState

__all__ = ["collect", "detokenizer_for", "failure_of", "with_beams", "with_tensors"]


def detokenizer_for(
    detokenizer: IncrementalDetokenizer, request: EngineCoreRequest, tokenizer: Any
) -> IncrementalDetokenizer:
    """As `answers.detokenizer_for`; with receipts it keeps what the request's will say of it.

    Raises:
        VLLMValidationError: see `begin_receipt`.
    """
    chosen = answers.detokenizer_for(detokenizer, request, tokenizer)
    begin_receipt(chosen, request)
    return chosen


def with_tensors(state: RequestState, output: CompletionOutput) -> CompletionOutput:
    """As `answers.with_tensors`, with the receipt of an answer that is complete."""
    return with_receipt(state, answers.with_tensors(state, output))
