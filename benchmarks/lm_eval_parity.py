"""Does lm-evaluation-harness score this vLLM with hf_compat as it scores Transformers?

    python -m benchmarks.lm_eval_parity [MODEL] [--documents N] [--fast] [--json FILE]

The harness runs its `hf` and its `vllm` model type, both in float32, on the same four tasks: two
let the model write (greedily, and with ``repetition_penalty=1.2`` in the task's
``generation_kwargs``), two score given texts. Every score is compared to its last digit, and so is
each text that the model wrote. vLLM runs in exact mode (so does ``make eval``); with ``--fast`` it
runs with ``hf_compat=True``, whose layers do not round as Transformers' do: tokens whose logits
agree to six digits may change places, the largest difference of log-probabilities is reported, and
a perplexity made of them has to agree to five digits. The documents are lines of the Python
standard library that the bundled model has not been trained on; nothing is downloaded.

What makes the two comparable: prompts of the `hf` type are read one by one (padding changes a
model's last bits), and `max_model_len` leaves room for prompt and answer, since the two types cut
longer prompts differently. A task that samples cannot be compared: the `hf` type draws the answers
to all documents one after the other from one global generator, and the `vllm` type at once.
"""

from __future__ import annotations

import argparse
import json
import operator
import os
import random
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("LMEVAL_LOG_LEVEL", "ERROR")

from rich.console import Console
from rich.table import Table

from benchmarks.bundled import BUNDLED_MODEL
from tools.python_corpus import Document, read_documents, split_held_out

MAX_MODEL_LEN = 1024
CONTEXT_LINES = 12
NUM_CHOICES = 4
FLOAT32_DIGITS = 1e-5  # how far sums of logits may be apart whose last bits are not the same


@dataclass
class Comparison:
    """One score of one task on both sides.

    Attributes:
        texts_equal: how many documents got the same text; None where nothing is written.
        largest_difference: of the summed log-probabilities; None where nothing is scored.
        relative_difference: of the scores.
    """

    task: str
    metric: str
    hugging_face: float
    hf_compat: float
    documents: int
    texts_equal: int | None
    largest_difference: float | None
    relative_difference: float

    @property
    def passed(self) -> bool:
        """Whether all digits and texts agree; of a perplexity, those that float32 has."""
        limit = FLOAT32_DIGITS if self.metric == "perplexity" else 0.0
        return self.relative_difference <= limit and self.texts_equal in (None, self.documents)


# --- documents -----------------------------------------------------------------------------------
def make_documents(sources: Sequence[Document], count: int) -> Iterator[dict[str, Any]]:
    """Yield `count` lines of `sources`: those before, the line, its last word, three others."""
    rng = random.Random(0)
    places = [
        (lines, i)
        for lines in (source.text.splitlines() for source in sources)
        for i in range(CONTEXT_LINES, len(lines))
        if len(lines[i].strip()) > 8
    ]
    for lines, i in rng.sample(places, count):
        others = sorted({line for line in lines if len(line.strip()) > 8} - {lines[i]})
        choices = [lines[i], *rng.sample(others, NUM_CHOICES - 1)]
        rng.shuffle(choices)
        context = "\n".join(lines[i - CONTEXT_LINES : i]) + "\n"
        word = re.findall(r"\S+\s*$", lines[i])[0]
        yield {
            "context": context,
            "line": lines[i],
            "until_word": context + lines[i].removesuffix(word),
            "word": word,
            "choices": choices,
            "answer": choices.index(lines[i]),
        }


# --- tasks ---------------------------------------------------------------------------------------
def make_tasks(file: Path) -> list[dict[str, Any]]:
    """Return the harness's configurations of the tasks on the documents in `file`."""
    shared: dict[str, Any] = {
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(file)}},
        "test_split": "test",
        "doc_to_text": "{{context}}",
        "doc_to_target": "{{line}}",
        "target_delimiter": "",
    }
    writing = {"output_type": "generate_until", "metric_list": _metrics("exact_match", "chrf")}
    greedy = {"until": ["\n\n"], "do_sample": False, "max_gen_toks": 64}
    return [
        shared | writing | {"task": "continue", "generation_kwargs": greedy},
        shared
        | writing
        | {
            "task": "continue_penalized",
            "generation_kwargs": {**greedy, "until": ["\ndef "], "repetition_penalty": 1.2},
        },
        shared
        | {
            "task": "choose_line",
            "output_type": "multiple_choice",
            "doc_to_choice": "{{choices}}",
            "doc_to_target": "answer",
            "metric_list": _metrics("acc", "acc_norm"),
        },
        shared
        | {
            "task": "next_word",
            "output_type": "loglikelihood",
            "doc_to_text": "{{until_word}}",
            "doc_to_target": "{{word}}",
            "metric_list": [
                *_metrics("acc"),
                {"metric": "perplexity", "aggregation": "perplexity", "higher_is_better": False},
            ],
        },
    ]


def _metrics(*names: str) -> list[dict[str, Any]]:
    return [
        {
            "metric": name,
            "aggregation": "chrf" if name == "chrf" else "mean",
            "higher_is_better": True,
        }
        for name in names
    ]


# --- the two sides -------------------------------------------------------------------------------
def hugging_face(model: str, tasks: list[dict[str, Any]]) -> dict[str, Any]:
    """Run the harness with its `hf` model type."""
    from lm_eval.models.huggingface import HFLM

    # Its cache takes two tasks' documents for one if context and answer together are the same.
    one_by_one = {"batch_size": 1, "logits_cache": False}
    return evaluate(HFLM(model, dtype="float32", device="cpu", **one_by_one), tasks)


def hf_compat(model: str, tasks: list[dict[str, Any]], mode: bool | str) -> dict[str, Any]:
    """Run the harness with its `vllm` model type."""
    from lm_eval.models.vllm_causallms import VLLM

    vllm = VLLM(
        model,
        dtype="float32",
        max_model_len=MAX_MODEL_LEN,
        hf_compat=mode,
        enforce_eager=True,
        kv_cache_memory_bytes=1 << 29,
    )
    try:
        return evaluate(vllm, tasks)
    finally:
        vllm.model.llm_engine.engine_core.shutdown()


def evaluate(model: Any, tasks: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the harness's results and samples."""
    import lm_eval

    results = lm_eval.simple_evaluate(
        model, tasks=[dict(task) for task in tasks], bootstrap_iters=0
    )
    assert results is not None  # it is on other ranks than the first
    return dict(results)


def answers(results: dict[str, Any], task: str) -> list[list[Any]]:
    """Return what the model gave to each document of a task: texts, or log-probabilities."""
    samples = sorted(results["samples"][task], key=lambda sample: sample["doc_id"])
    return [[response[0] for response in sample["resps"]] for sample in samples]


def compare(
    theirs: dict[str, Any], ours: dict[str, Any], tasks: list[dict[str, Any]]
) -> Iterator[Comparison]:
    """Yield a comparison for each score of each task."""
    for task in tasks:
        name = task["task"]
        pair = answers(theirs, name), answers(ours, name)
        is_text = task["output_type"] == "generate_until"
        for metric in (each["metric"] for each in task["metric_list"]):
            a, b = (float(side["results"][name][f"{metric},none"]) for side in (theirs, ours))
            yield Comparison(
                task=name,
                metric=metric,
                hugging_face=a,
                hf_compat=b,
                documents=len(pair[0]),
                texts_equal=sum(map(operator.eq, *pair)) if is_text else None,
                largest_difference=None if is_text else _largest_difference(*pair),
                relative_difference=abs(a - b) / abs(a) if a != b else 0.0,
            )


def _largest_difference(theirs: list[list[Any]], ours: list[list[Any]]) -> float:
    pairs = (
        (a[0], b[0])
        for of_document in zip(theirs, ours, strict=True)
        for a, b in zip(*of_document, strict=True)
    )
    return max(abs(a - b) for a, b in pairs)


def show(comparisons: list[Comparison]) -> None:
    """Print the comparisons as a table."""
    table = Table("task", "metric", "Transformers", "hf_compat", "texts equal", "logprobs", "same")
    for one in comparisons:
        difference = one.largest_difference
        table.add_row(
            one.task,
            one.metric,
            repr(one.hugging_face),
            repr(one.hf_compat),
            "" if one.texts_equal is None else f"{one.texts_equal}/{one.documents}",
            "" if difference is None else f"within {difference:.1e}",
            _verdict(one),
        )
    Console(width=130).print(table)


def _verdict(one: Comparison) -> str:
    if not one.passed:
        return "NO"
    return f"to {one.relative_difference:.0e}" if one.relative_difference else "yes"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model", nargs="?", default=str(BUNDLED_MODEL))
    parser.add_argument("--documents", type=int, default=64)
    parser.add_argument("--fast", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()

    _, held_out = split_held_out(read_documents())
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HF_DATASETS_CACHE"] = folder  # read when the harness is imported
        file = Path(folder, "documents.json")
        lines = [json.dumps(document) for document in make_documents(held_out, args.documents)]
        file.write_text("\n".join(lines) + "\n")
        tasks = make_tasks(file)
        theirs = hugging_face(args.model, tasks)
        ours = hf_compat(args.model, tasks, True if args.fast else "exact")
    comparisons = list(compare(theirs, ours, tasks))
    show(comparisons)
    if args.json:
        report = [asdict(one) | {"passed": one.passed} for one in comparisons]
        args.json.write_text(json.dumps(report, indent=1) + "\n")
    if not all(comparison.passed for comparison in comparisons):
        raise SystemExit("error: the scores are not the same")


if __name__ == "__main__":
    main()
