"""``examples/datatrove_pipeline.py``: two servers on a local Ray answer as one engine does."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from transformers import GenerationConfig

from tests.scale_out.processes import kill, start_example, wait_until
from tests.scale_out.rows import of_one_engine, of_transformers, short_prompts

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from tests.scale_out.conftest import LocalRay
    from vllm import LLM

ROWS = 256
# As the example has them.
CONFIG = GenerationConfig(max_new_tokens=32, no_repeat_ngram_size=3, repetition_penalty=1.2)


def start(source: Path, target: Path, ray: LocalRay) -> subprocess.Popen[bytes]:
    return start_example("datatrove_pipeline.py", source, target, ray.variables)


def answers_in(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield a row's id and its text, as often as it was answered."""
    for file in sorted(folder.glob("*.jsonl")):
        for line in file.read_text().splitlines():
            row = json.loads(line)
            (result,) = row["metadata"]["rollout_results"]
            yield row["id"], result["text"]


def checkpoints(target: Path) -> int:
    """Return how many answers are kept in chunks that are not complete."""
    files = target.with_name(f"{target.name}.checkpoint").glob("*/chunk_*.jsonl")
    return sum(len(file.read_bytes().splitlines()) for file in files)


@pytest.mark.long
def test_two_servers_of_which_one_is_killed_answer_as_one_engine(
    local_ray: LocalRay,
    engine: LLM,
    hf_model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    tmp_path: Path,
) -> None:
    """The first run keeps what was answered and says that something is left; the second ends."""
    prompts = short_prompts(ROWS)
    source, target = tmp_path / "input", tmp_path / "answers"
    source.mkdir()
    lines = [json.dumps({"id": str(i), "prompt": one}) for i, one in enumerate(prompts)]
    for part in range(2):
        (source / f"{part}.jsonl").write_text("\n".join(lines[part::2]) + "\n")

    first = start(source, target, local_ray)
    wait_until(lambda: checkpoints(target), first, "a row was answered")
    kill(local_ray.oldest("VLLM::EngineCore"))
    assert first.wait(timeout=600) == 1, target.with_suffix(".log").read_text()[-3000:]
    kept = dict(answers_in(target))
    assert 0 < len(kept) < ROWS
    second = start(source, target, local_ray)
    assert second.wait(timeout=600) == 0, target.with_suffix(".log").read_text()[-3000:]

    found = list(answers_in(target))
    answers = dict(found)
    assert len(found) == len(answers) == ROWS
    assert answers == of_one_engine(engine, prompts, CONFIG)
    asked = of_transformers(hf_model, tokenizer, prompts, CONFIG)
    assert {row: answers[row] for row in asked} == asked
