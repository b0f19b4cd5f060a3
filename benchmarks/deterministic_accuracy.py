"""How far deterministic mode is from exact numbers, beside PyTorch's own arithmetic.

    python -m benchmarks.deterministic_accuracy [MODEL] [--json FILE]

Texts that the bundled model was not trained on, in windows of 256 tokens: the mean negative
log-likelihood, the logits and the likeliest token of each arithmetic, against float64. And, for
information, how many greedy answers of deterministic mode are those of stock Hugging Face in the
same 16 bits, which rounds elsewhere.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from tqdm.auto import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from benchmarks.bundled import BUNDLED_MODEL
from tools.python_corpus import read_documents, split_held_out
from vllm.deterministic import attach

WINDOW = 256
ANSWER = 64


@dataclass
class Accuracy:
    """Of one arithmetic, against float64.

    Attributes:
        name: of the arithmetic.
        likelihood: difference of the mean negative log-likelihoods of a token, in nats.
        logits: norm of all differences of logits, relative to the logits'.
        likeliest: share of positions with another likeliest token.
    """

    name: str
    likelihood: float
    logits: float
    likeliest: float


def windows(model: str) -> torch.Tensor:
    """Return held-out text, int64 [windows, WINDOW + 1], each after the token that begins texts."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    _, held_out = split_held_out(read_documents())
    rows = []
    for document in held_out:
        ids = tokenizer(document.text, add_special_tokens=False)["input_ids"]
        cut = [ids[i : i + WINDOW] for i in range(0, len(ids) - WINDOW + 1, WINDOW)]
        rows += [[tokenizer.bos_token_id, *row] for row in cut]
    return torch.tensor(rows)


def load(model: str, dtype: torch.dtype, is_portable: bool) -> PreTrainedModel:
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=dtype).eval()
    return attach(loaded) if is_portable else loaded


@torch.no_grad()
def all_logits(model: PreTrainedModel, rows: torch.Tensor) -> torch.Tensor:
    """Return float64 [windows, WINDOW, vocab_size], of one window at a time."""
    batches = (model(row[None, :-1]).logits.double() for row in tqdm(rows, leave=False))
    return torch.cat(list(batches))


def likelihood(logits: torch.Tensor, rows: torch.Tensor) -> float:
    """Return the mean negative log-likelihood of what follows, in nats."""
    chosen = logits.log_softmax(-1).gather(-1, rows[:, 1:, None])
    return -float(chosen.mean())


def compare(name: str, logits: torch.Tensor, exact: torch.Tensor, rows: torch.Tensor) -> Accuracy:
    return Accuracy(
        name,
        likelihood(logits, rows) - likelihood(exact, rows),
        float((logits - exact).norm() / exact.norm()),
        float((logits.argmax(-1) != exact.argmax(-1)).double().mean()),
    )


@torch.no_grad()
def equal_answers(one: PreTrainedModel, other: PreTrainedModel, rows: torch.Tensor) -> int:
    """Return how many greedy answers to the first tokens of each window are equal."""
    settings = {"max_new_tokens": ANSWER, "min_new_tokens": ANSWER, "do_sample": False}
    prompts = [row[None, :32] for row in rows]
    return sum(
        torch.equal(*(model.generate(prompt, pad_token_id=0, **settings) for model in (one, other)))
        for prompt in tqdm(prompts, leave=False)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default=str(BUNDLED_MODEL))
    parser.add_argument("--windows", type=int, default=64)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = windows(options.model)[: options.windows]
    exact = all_logits(load(options.model, torch.float64, False), rows)
    found = [
        compare(
            f"{str(dtype).removeprefix('torch.')}, {'deterministic' if is_portable else 'PyTorch'}",
            all_logits(load(options.model, dtype, is_portable), rows),
            exact,
            rows,
        )
        for dtype, is_portable in (
            (torch.float32, False),
            (torch.bfloat16, False),
            (torch.bfloat16, True),
            (torch.float16, False),
            (torch.float16, True),
        )
    ]
    table = Table("", "likelihood", "logits", "likeliest")
    for row in found:
        table.add_row(
            row.name, f"{row.likelihood:+.1e}", f"{row.logits:.1e}", f"{row.likeliest:.2%}"
        )
    console = Console()
    console.print(table)
    stock, portable = (load(options.model, torch.bfloat16, flag) for flag in (False, True))
    answers = rows[:32]
    equal = equal_answers(stock, portable, answers)
    console.print(
        f"bfloat16, answers of {ANSWER} tokens equal to PyTorch's: {equal} of {len(answers)}"
    )
    if options.json:
        data = {"rows": [asdict(row) for row in found], "equal": equal, "of": len(answers)}
        options.json.write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    main()
