"""An audit: answers computed again, one prefill each, and what their receipts say of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from vllm.exceptions import VLLMValidationError
from vllm.hf_compat.answers import HFOutput
from vllm.receipts import verdict
from vllm.receipts.file import Claim
from vllm.receipts.parameters import params_from
from vllm.receipts.proposer import speculative_config
from vllm.receipts.receipt import Receipt, chain_of
from vllm.receipts.verdict import Verdict

if TYPE_CHECKING:
    from vllm import LLM

_AT_ONCE = 256
_REFUSALS = (
    VLLMValidationError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError
)  # fmt: skip
"""What parameters raise that no engine has written, before they reach one."""


def engine_arguments(receipt: Receipt) -> dict[str, Any]:
    """Return the arguments of ``LLM`` with which an engine can audit answers like that one.

    Args:
        receipt: of the form that receipts have.
    """
    size = len(chain_of(receipt)[0])
    return {
        "model": receipt["model"].get("name"),
        "dtype": receipt["flags"].get("dtype"),
        "max_model_len": receipt["flags"].get("max_model_len"),
        "hf_compat": True,
        "deterministic": True,
        "receipts": True if size == 8 else str(size),
        "speculative_config": speculative_config(),
    }


def audit(llm: LLM, claims: Iterable[Claim]) -> Iterator[Verdict]:
    """Yield the verdict about each answer, in order.

    Args:
        llm: of `engine_arguments`, also with another model or other flags.
        claims: as many as there are; some hundreds are held at once.
    """
    rest = iter(claims)
    while chunk := list(islice(rest, _AT_ONCE)):
        found = [verdict.of_form(claim) for claim in chunk]
        open_ones = [claim for claim, one in zip(chunk, found, strict=True) if one is None]
        answers = iter(_computed(llm, open_ones))
        for one in found:
            yield next(answers) if one is None else one


def _computed(llm: LLM, claims: Sequence[Claim]) -> list[Verdict]:
    """Return the verdicts about answers, all computed at once unless one cannot be."""
    if not claims:
        return []
    try:
        asked = [_request(claim) for claim in claims]
        outputs = llm.generate(
            [prompt for prompt, _ in asked], [params for _, params in asked], use_tqdm=False
        )
    except _REFUSALS as error:
        if len(claims) > 1:
            return [one for claim in claims for one in _computed(llm, [claim])]
        reason = str(error).rstrip(".")
        return [Verdict(claims[0].place, "parameters", f"it cannot be computed: {reason}")]
    return [
        _verdict(claim, output.outputs[0]) for claim, output in zip(claims, outputs, strict=True)
    ]


def _request(claim: Claim) -> tuple[dict[str, Any], Any]:
    """Return the prompt and the parameters of an answer that is computed again."""
    receipt = claim.receipt
    assert receipt is not None
    params = params_from(receipt["parameters"], receipt["output"])
    return {"prompt_token_ids": receipt["prompt"]}, params


def _verdict(claim: Claim, output: Any) -> Verdict:
    if not isinstance(output, HFOutput) or output.receipt is None:
        reason = output.stop_reason or output.finish_reason
        return Verdict(claim.place, "parameters", f"it cannot be computed: {reason}")
    assert output.logits_digests is not None
    return verdict.of_answer(claim, output.receipt, output.logits_digests, output.text)
