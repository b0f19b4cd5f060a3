"""An audit: answers computed again, one prefill each, and what their receipts say of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any

from vllm.exceptions import VLLMValidationError
from vllm.fork.flags.fork_flags import ForkFlags
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
        found = [verdict.of_form(claim) or _of_size(llm, claim) for claim in chunk]
        open_ones = [claim for claim, one in zip(chunk, found, strict=True) if one is None]
        answers = iter(_computed(llm, open_ones))
        for one in found:
            yield next(answers) if one is None else one


def _computed(llm: LLM, claims: Sequence[Claim]) -> list[Verdict]:
    """Return the verdicts about answers, all computed at once unless one cannot be."""
    if not claims:
        return []
    try:
        asked = [_request(llm, claim) for claim in claims]
        outputs = llm.generate(
            [prompt for prompt, _ in asked], [params for _, params in asked], use_tqdm=False
        )
    except _REFUSALS as error:
        if len(claims) > 1:
            return [one for claim in claims for one in _computed(llm, [claim])]
        reason = str(error).rstrip(".")
        return [Verdict(claims[0].place, "parameters", f"it cannot be computed: {reason}")]
    return [
        _verdict(llm, claim, output.outputs[0])
        for claim, output in zip(claims, outputs, strict=True)
    ]


def _of_size(llm: LLM, claim: Claim) -> Verdict | None:
    """Return the verdict about a receipt whose links are not as long as those of the engine."""
    assert claim.receipt is not None
    own = ForkFlags.of(llm.llm_engine.vllm_config).receipt_bytes
    size = len(chain_of(claim.receipt)[0])
    if size == own:
        return None
    return Verdict(
        claim.place,
        "receipt",
        f"it has {size} bytes for each token, and those of this audit have {own}: audit it with "
        "others of its kind",
    )


def _request(llm: LLM, claim: Claim) -> tuple[dict[str, Any], Any]:
    """Return the prompt and the parameters of an answer that is computed again."""
    receipt = claim.receipt
    assert receipt is not None
    vocab_size = llm.model_config.get_vocab_size()
    # What follows an id that is no token was not chosen by anything: it needs no logits.
    possible = [*takewhile(lambda token: token < vocab_size, receipt["output"])]
    params = params_from(receipt["parameters"], possible, vocab_size)
    return {"prompt_token_ids": receipt["prompt"]}, params


def _verdict(llm: LLM, claim: Claim, output: Any) -> Verdict:
    if not isinstance(output, HFOutput) or output.receipt is None:
        reason = output.stop_reason or output.finish_reason
        return Verdict(claim.place, "parameters", f"it cannot be computed: {reason}")
    assert output.logits_digests is not None
    assert claim.receipt is not None
    is_prompt = partial(_is_text_of, llm, claim.receipt["prompt"])
    return verdict.of_answer(claim, output.receipt, output.logits_digests, output.text, is_prompt)


def _is_text_of(llm: LLM, prompt: list[int], text: str) -> bool:
    """Whether a prompt is that of a text, with or without special tokens at its beginning."""
    tokenizer = llm.get_tokenizer()
    return text in (
        tokenizer.decode(prompt),
        tokenizer.decode(prompt, skip_special_tokens=True),
    ) or prompt in (
        tokenizer.encode(text),
        tokenizer.encode(text, add_special_tokens=False),
    )
