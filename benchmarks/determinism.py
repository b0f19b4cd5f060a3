"""How many answers keep their bits when only the circumstances change; written into docs/.

    python -m benchmarks.determinism [MODEL] [--dtypes bfloat16 float16]

32 prompts x 16 greedy tokens, with all logits. Each circumstance (a batch, chunks, a cache,
threads, an instruction set, ranks, ...) is an engine in a process of its own, in deterministic
mode and, with the same arguments, as upstream; an answer counts if its tokens and the bits of all
its logits are those of the same prompt asked alone. Their digests are kept with the
numbers, so that every machine and every later version is held to the same bits.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from tqdm.auto import tqdm

ROOT = Path(__file__).resolve().parent.parent
BUNDLED = ROOT / "models" / "tiny-python-llama"
MODES = ("upstream", "deterministic")
NGRAM = {
    "method": "ngram",
    "num_speculative_tokens": 3,
    "prompt_lookup_min": 1,
    "prompt_lookup_max": 3,
}


@dataclass(frozen=True)
class Circumstance:
    """What changes.

    Attributes:
        arguments: of the engine.
        environment: of its process.
        order: "alone", "together", "shuffled", "twice" (the second answers count), or "prompts"
            (each token is the first after a longer prompt, so that none is decoded).
    """

    arguments: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    order: str = "together"


CIRCUMSTANCES = {
    "alone": Circumstance(order="alone"),
    "another process": Circumstance(order="alone"),
    "all at once": Circumstance(),
    "shuffled": Circumstance(order="shuffled"),
    "chunks of 16": Circumstance({"max_num_batched_tokens": 16, "max_num_seqs": 16}),
    "chunks of 64": Circumstance({"max_num_batched_tokens": 64}),
    "chunks of 256": Circumstance({"max_num_batched_tokens": 256}),
    "prefix cache hits": Circumstance({"enable_prefix_caching": True}, order="twice"),
    "preemption": Circumstance({"block_size": 32, "num_gpu_blocks_override": 80}),
    "recomputed, no cache": Circumstance(order="prompts"),
    "drafts": Circumstance({"speculative_config": NGRAM}),
    "one thread": Circumstance(environment={"OMP_NUM_THREADS": "1"}),
    "AVX-512": Circumstance(environment={"VLLM_FORK_CPU_ISA": "avx512"}),
    "AVX2": Circumstance(environment={"VLLM_FORK_CPU_ISA": "avx2"}),
    "no vector instructions": Circumstance(environment={"VLLM_FORK_CPU_ISA": "scalar"}),
    "two ranks": Circumstance({"tensor_parallel_size": 2}, {"VLLM_CPU_OMP_THREADS_BIND": "nobind"}),
}


COMMITTED = "what was committed"
"""The row of answers whose digests are those of an earlier run, on whatever machine that was."""


@dataclass(frozen=True)
class Row:
    """Answers that kept their bits under a circumstance, of one model and dtype: for each mode a
    number, None where upstream has no such choice.
    """

    model: str
    dtype: str
    circumstance: str
    equal: dict[str, int | None]
    prompts: int
    logits: int


def ask(model: Path, dtype: str, mode: str, name: str, prompts: int, tokens: int) -> dict[str, Any]:
    """Return the digests of all answers, asked in a process of its own."""
    circumstance = CIRCUMSTANCES[name]
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "answers.json"
        command = [sys.executable, "-m", "benchmarks.determinism_side", str(model), dtype, mode]
        command += [json.dumps(circumstance.arguments), circumstance.order, str(output)]
        command += [str(prompts), str(tokens)]
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=os.environ | circumstance.environment,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            last = done.stderr.strip().splitlines()[-1:]
            raise RuntimeError(f"{mode}, {name}: {' '.join(last)}")
        found: dict[str, Any] = json.loads(output.read_text())
        return found


def key_of(model: Path, dtype: str, prompts: int, tokens: int) -> str:
    """Return the name under which the digests of answers are kept."""
    return f"{model.resolve().name}, {dtype}, {prompts} x {tokens}"


def rows_of(
    model: Path,
    dtype: str,
    names: list[str],
    prompts: int,
    tokens: int,
    digests: dict[str, list[str]],
) -> list[Row]:
    """Ask both modes under each circumstance; compare with the digests, or add to them."""
    counts: dict[str, dict[str, int | None]] = {name: {} for name in names}
    logits = 0
    bar = tqdm(total=len(names) * len(MODES), leave=False)
    for mode in MODES:
        alone = None
        for name in names:
            bar.set_description(f"{dtype}, {mode}, {name}")
            bar.update()
            if mode == "upstream" and "VLLM_FORK_CPU_ISA" in CIRCUMSTANCES[name].environment:
                counts[name][mode] = None  # upstream chooses for itself
                continue
            answers = ask(model, dtype, mode, name, prompts, tokens)
            logits = answers["logits"]
            if mode == "deterministic" and name == "alone":
                kept = digests.setdefault(key_of(model, dtype, prompts, tokens), answers["digests"])
                equal = sum(map(str.__eq__, kept, answers["digests"]))
                counts[COMMITTED] = {"upstream": None, mode: equal}
            alone = alone or answers["digests"]
            pairs = zip(alone, answers["digests"], strict=True)
            counts[name][mode] = sum(one == other for one, other in pairs)
    bar.close()
    about = (model.resolve().name, dtype)
    return [Row(*about, name, equal, prompts, logits) for name, equal in counts.items()]


def as_markdown(rows: list[Row], about: dict[str, Any]) -> str:
    """Return the page of docs/."""
    lines = [
        "# Answers that keep their bits",
        "",
        "Written by `python -m benchmarks.determinism`; [the same as JSON](determinism.json). Each "
        "row is an engine of its own, and counts the answers whose tokens and logits, all of them "
        "and to the last bit, are those of the same prompt asked alone (the first row); the last "
        "one compares those with the digests that are committed. Prompts have up to 2,032 tokens, "
        "and answers 16. Upstream "
        "is this distribution without flags, with the same arguments; what it keeps depends on the "
        "CPU and on the sizes of the model.",
        "",
        f"Measured with {', '.join(f'{key} {value}' for key, value in about.items())}.",
        "",
        "| model | dtype | what changes | of | upstream | deterministic | logits compared |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        upstream, ours = ("-" if row.equal[m] is None else str(row.equal[m]) for m in MODES)
        lines.append(
            f"| {row.model} | {row.dtype} | {row.circumstance} | {row.prompts} | {upstream} "
            f"| {ours} | {row.logits:,} |"
        )
    return "\n".join(lines) + "\n"


def digests_of(written: Path) -> dict[str, list[str]]:
    """Return those that were kept; none, if nothing was."""
    if not written.exists():
        return {}
    found: dict[str, list[str]] = json.loads(written.read_text()).get("digests", {})
    return found


def rows_of_others(written: Path, new: list[Row]) -> list[Row]:
    """Return the rows of an earlier run that no new one takes the place of."""
    if not written.exists():
        return []
    measured = {(row.model, row.dtype, row.circumstance) for row in new}
    rows = [Row(**row) for row in json.loads(written.read_text())["rows"]]
    return [row for row in rows if (row.model, row.dtype, row.circumstance) not in measured]


def in_order(rows: list[Row]) -> list[Row]:
    """Return them by model, dtype and circumstance; models stay in the order of their first."""
    models = list(dict.fromkeys(row.model for row in rows))
    names = [*CIRCUMSTANCES, COMMITTED]
    return sorted(
        rows, key=lambda row: (models.index(row.model), row.dtype, names.index(row.circumstance))
    )


def main() -> None:
    from vllm.parity.machine import machine

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", type=Path, default=BUNDLED)
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16", "float16"])
    parser.add_argument("--circumstances", nargs="+", default=list(CIRCUMSTANCES))
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--docs", type=Path, default=ROOT / "docs")
    options = parser.parse_args()
    names = ["alone", *(name for name in options.circumstances if name != "alone")]
    as_json = options.docs / "determinism.json"
    options.docs.mkdir(parents=True, exist_ok=True)
    digests = digests_of(as_json)
    for dtype in options.dtypes:
        new = rows_of(options.model, dtype, names, options.prompts, options.tokens, digests)
        rows = in_order([*rows_of_others(as_json, new), *new])
        about = machine()
        page = as_markdown(rows, about)
        (options.docs / "determinism.md").write_text(page)
        data = {"machine": about, "rows": [vars(row) for row in rows], "digests": digests}
        as_json.write_text(json.dumps(data, indent=1) + "\n")
    Console().print(page)


if __name__ == "__main__":
    main()
