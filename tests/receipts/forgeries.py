"""Receipts that say something else than what was computed, each in one of many ways."""

from __future__ import annotations

import base64
import copy
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vllm.receipts.receipt import Receipt, chain_of, make_receipt


@dataclass(frozen=True)
class Honest:
    """An answer as it was given.

    Attributes:
        receipt: of it.
        logits: the digests of its logits, which a forger who has the model knows, too.
        text: of it.
    """

    receipt: Receipt
    logits: list[bytes]
    text: str

    @property
    def has_its_seed_alone(self) -> bool:
        """Whether other seeds give other tokens, as for no greedy, narrow or short answer."""
        fields = self.receipt["parameters"]["hf"].get("fields", {})
        return fields.get("temperature", 1.0) > 1 and len(self.logits) > 12


@dataclass(frozen=True)
class Forgery:
    """What a forger hands in.

    Attributes:
        receipt: changed.
        text: beside it.
        differs: what an audit has to find.
    """

    receipt: Receipt
    text: Any
    differs: str


Forger = Callable[[random.Random, Honest, Receipt], str]
"""Changes a copy of a receipt, and returns what an audit has to find."""


def made_anew(receipt: Receipt, logits: list[bytes]) -> None:
    """Seal the fields and chain the tokens of a receipt as if they were the true ones."""
    fields = {name: receipt[name] for name in ("version", "numerics")}
    fields |= {name: receipt[name] for name in ("model", "flags", "prompt", "parameters")}
    receipt.update(make_receipt(fields, receipt["output"], logits, receipt["finish"]))


def _another(rng: random.Random, token: int) -> int:
    return (token + rng.randrange(1, 4000)) % 4096


def token(rng: random.Random, honest: Honest, receipt: Receipt) -> str:
    i = rng.randrange(len(receipt["output"]))
    receipt["output"][i] = _another(rng, receipt["output"][i])
    return "tokens"


def token_with_its_link(rng: random.Random, honest: Honest, receipt: Receipt) -> str:
    token(rng, honest, receipt)
    made_anew(receipt, honest.logits)
    return "tokens"


def no_token(rng: random.Random, honest: Honest, receipt: Receipt) -> str:
    """An id that the model has no logits for."""
    i = rng.randrange(len(receipt["output"]))
    receipt["output"][i] = rng.choice((4096, 4100, (1 << 32) - 1))
    if rng.random() < 0.5:
        made_anew(receipt, honest.logits)
    return "tokens"


def swapped(rng: random.Random, honest: Honest, receipt: Receipt) -> str:
    output = receipt["output"]
    places = [i for i in range(len(output) - 1) if output[i] != output[i + 1]]
    i = rng.choice(places)
    output[i], output[i + 1] = output[i + 1], output[i]
    return "tokens"


def cut(rng: random.Random, honest: Honest, receipt: Receipt) -> str:
    length = rng.randrange(1, len(receipt["output"]))
    chain = b"".join(chain_of(receipt)[:length])
    receipt["output"] = receipt["output"][:length]
    receipt["logits"] = base64.b64encode(chain).decode()
    return "end"


def cut_as_if_stopped(rng: random.Random, honest: Honest, receipt: Receipt) -> str:
    cut(rng, honest, receipt)
    receipt["finish"] = ["stop", None]
    return "end"


def longer(rng: random.Random, honest: Honest, receipt: Receipt) -> str:
    receipt["output"].append(rng.randrange(4096))
    made_anew(receipt, [*honest.logits, rng.randbytes(8)])
    return "end"


def seed(rng: random.Random, honest: Honest, receipt: Receipt) -> str:
    receipt["parameters"]["hf"]["seed"] = rng.randrange(1 << 32)
    return "parameters"


def seed_made_anew(rng: random.Random, honest: Honest, receipt: Receipt) -> str:
    if not honest.has_its_seed_alone:
        return token_with_its_link(rng, honest, receipt)
    seed(rng, honest, receipt)
    made_anew(receipt, honest.logits)
    return "tokens"


def parameter(rng: random.Random, honest: Honest, receipt: Receipt) -> str:
    receipt["parameters"]["hf"].setdefault("fields", {})["top_k"] = rng.randrange(2, 10)
    return "parameters"


def prompt(rng: random.Random, honest: Honest, receipt: Receipt) -> str:
    i = rng.randrange(len(receipt["prompt"]))
    receipt["prompt"][i] = _another(rng, receipt["prompt"][i])
    return "prompt"


def prompt_made_anew(rng: random.Random, honest: Honest, receipt: Receipt) -> str:
    prompt(rng, honest, receipt)
    made_anew(receipt, honest.logits)
    return "logits"


def weights(rng: random.Random, honest: Honest, receipt: Receipt) -> str:
    receipt["model"]["weights"] = rng.randbytes(16).hex()
    if rng.random() < 0.5:
        made_anew(receipt, honest.logits)
    return "model"


def name(rng: random.Random, honest: Honest, receipt: Receipt) -> str:
    receipt["model"]["name"] += "-large"
    return "model"


def flags(rng: random.Random, honest: Honest, receipt: Receipt) -> str:
    receipt["flags"]["dtype"] = "float16"
    if rng.random() < 0.5:
        made_anew(receipt, honest.logits)
    return "flags"


def link(rng: random.Random, honest: Honest, receipt: Receipt) -> str:
    chain = bytearray(b"".join(chain_of(receipt)))
    chain[rng.randrange(len(chain))] ^= 1 << rng.randrange(8)
    receipt["logits"] = base64.b64encode(bytes(chain)).decode()
    return "logits"


def chain_too_short(rng: random.Random, honest: Honest, receipt: Receipt) -> str:
    chain = b"".join(chain_of(receipt))
    receipt["logits"] = base64.b64encode(chain[: rng.randrange(len(chain) - 1)]).decode()
    return "receipt"


def seal(rng: random.Random, honest: Honest, receipt: Receipt) -> str:
    which = rng.choice(("model", "flags", "prompt", "parameters"))
    receipt["seals"][which] = rng.randbytes(8).hex()
    return which


def ending(rng: random.Random, honest: Honest, receipt: Receipt) -> str:
    reason = receipt["finish"][0]
    receipt["finish"] = ["stop" if reason == "length" else "length", None]
    return "end"


def version(rng: random.Random, honest: Honest, receipt: Receipt) -> str:
    which = rng.choice(("version", "numerics"))
    receipt[which] += 1
    return "receipt" if which == "version" else "numerics"


def field(rng: random.Random, honest: Honest, receipt: Receipt) -> str:
    if rng.random() < 0.5:
        receipt["verified"] = True
    else:
        del receipt[rng.choice(sorted(receipt))]
    return "receipt"


def text(rng: random.Random, honest: Honest, receipt: Receipt) -> str:
    return "text"


FORGERS: tuple[Forger, ...] = (
    token, token_with_its_link, no_token, swapped, cut, cut_as_if_stopped, longer, seed,
    seed_made_anew, parameter, prompt, prompt_made_anew, weights, name, flags, link,
    chain_too_short, seal, ending, version, field, text,
)  # fmt: skip


def forge(rng: random.Random, honest: list[Honest], number: int) -> Forgery:
    """Return a forgery of one of some answers, of each kind in turn."""
    one = rng.choice(honest)
    receipt: Any = copy.deepcopy(one.receipt)
    forger = FORGERS[number % len(FORGERS)]
    differs = forger(rng, one, receipt)
    forged = rng.choice((one.text + " ", "import evil; " + one.text, one.text[1:], 5, ["x"]))
    return Forgery(receipt, forged if forger is text else one.text, differs)
