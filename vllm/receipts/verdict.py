"""What an audit says of an answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from vllm.deterministic import NUMERICS_VERSION
from vllm.receipts.file import Claim
from vllm.receipts.receipt import (
    SEALED,
    VERSION,
    Receipt,
    chain_of,
    first_link,
    next_link,
    seals_of,
)


@dataclass(frozen=True)
class Verdict:
    """Whether an answer is what its receipt says.

    Attributes:
        place: where it stands.
        differs: ``""`` if it is; else what differs first: ``receipt``, ``numerics``, ``model``,
            ``flags``, ``prompt``, ``parameters``, ``logits``, ``tokens``, ``end`` or ``text``.
        sentence: about it.
        token: the first one concerned, from zero; None if it is not about tokens.
        num_tokens: of the answer.
    """

    place: str
    differs: str
    sentence: str
    token: int | None = None
    num_tokens: int = 0


def of_form(claim: Claim) -> Verdict | None:
    """Return the verdict that needs no model; None if there is none yet."""
    receipt = claim.receipt
    if receipt is None:
        return Verdict(claim.place, "receipt", claim.problem)
    if receipt["version"] != VERSION:
        return Verdict(
            claim.place, "receipt", f"its form is version {receipt['version']}, not {VERSION}"
        )
    if receipt["numerics"] != NUMERICS_VERSION:
        return Verdict(
            claim.place,
            "numerics",
            f"it was computed with version {receipt['numerics']} of the arithmetic, and this is "
            f"{NUMERICS_VERSION}",
        )
    seals = seals_of(receipt)
    for name in SEALED:
        if seals[name] != receipt["seals"][name]:
            return Verdict(claim.place, name, f"what it says of its {name} is not what was sealed")
    return None


def of_answer(
    claim: Claim,
    again: Receipt,
    logits: list[bytes],
    text: str,
    is_prompt: Callable[[str], bool],
) -> Verdict:
    """Return the verdict about an answer that was computed again.

    Args:
        claim: whose `of_form` has none.
        again: the receipt of the answer that was computed.
        logits: the digest of each of its rows.
        text: of that answer.
        is_prompt: whether a text is that of the prompt, which `echo` puts before.
    """
    receipt = claim.receipt
    assert receipt is not None
    for name in ("model", "flags"):
        if sentence := _difference(name, receipt[name], again[name]):
            return Verdict(claim.place, name, sentence)
    found = _of_tokens(claim.place, receipt, again, logits)
    if found is not None:
        return found
    count = len(receipt["output"])
    if sentence := _of_what_stands_beside(claim, text, is_prompt):
        return Verdict(claim.place, "text", sentence, None, count)
    not_read = "; its text was parsed, and is not compared" if claim.is_parsed else ""
    return Verdict(claim.place, "", f"equal, {count} tokens{not_read}", None, count)


def _of_what_stands_beside(claim: Claim, text: str, is_prompt: Callable[[str], bool]) -> str:
    """Return what is wrong with texts and token ids beside a receipt; empty if nothing is."""
    assert claim.receipt is not None
    for said in claim.texts:
        if not isinstance(said, str):
            return f"its text is no text, but {said!r:.40}"
        head = said.removesuffix(text)
        if said != text and not (said.endswith(text) and is_prompt(head)):
            return "its text is not that of its tokens"
    if claim.token_ids is not None and claim.token_ids != claim.receipt["output"]:
        return "its token_ids are not those of its receipt"
    return ""


def _difference(name: str, said: dict[str, object], found: dict[str, object]) -> str:
    """Return how the model or the flags of a receipt differ from those here; empty if not."""
    names = sorted({*said, *found} - {"name"})
    parts = [
        f"{one} is {said.get(one)!r:.40} there and {found.get(one)!r:.40} here"
        for one in names
        if said.get(one) != found.get(one)
    ]
    return f"another {name}: {'; '.join(parts)}" if parts else ""


def _of_tokens(place: str, receipt: Receipt, again: Receipt, logits: list[bytes]) -> Verdict | None:
    """Return the verdict about the first token that differs; None if all are equal."""
    tokens, chosen, chain = receipt["output"], again["output"], chain_of(receipt)
    link = first_link(receipt["seals"], len(chain[0]))
    for i, (token, claimed) in enumerate(zip(tokens, chain, strict=True)):
        if i >= len(chosen):
            return Verdict(place, "end", f"it ends after {i} tokens here", i, len(tokens))
        as_chosen = next_link(link, chosen[i], logits[i])
        link = next_link(link, token, logits[i])
        if claimed not in (link, as_chosen):
            return Verdict(place, "logits", f"the logits of token {i} differ", i, len(tokens))
        if token != chosen[i]:
            sentence = f"token {i} is {chosen[i]} here, and {token} is said"
            return Verdict(place, "tokens", sentence, i, len(tokens))
    if len(chosen) > len(tokens):
        sentence = f"it goes on after its {len(tokens)} tokens"
        return Verdict(place, "end", sentence, len(tokens), len(tokens))
    if list(receipt["finish"]) != list(again["finish"]):
        sentence = f"it ends by {again['finish']} here, and {receipt['finish']} is said"
        return Verdict(place, "end", sentence, None, len(tokens))
    return None
