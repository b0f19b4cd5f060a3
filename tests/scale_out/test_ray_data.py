"""``examples/ray_data.py``: two engines on a local Ray answer as one does, whatever is killed."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from transformers import GenerationConfig

from tests.scale_out.processes import kill, start_example, wait_until
from tests.scale_out.rows import of_one_engine, of_transformers, short_prompts, write_rows

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from tests.scale_out.conftest import LocalRay
    from vllm import LLM

ROWS = 320
# As the example has them.
CONFIG = GenerationConfig(max_new_tokens=32, no_repeat_ngram_size=3, repetition_penalty=1.2)
ENGINE = "ray::MapWorker(MapBatches(vLLMEngineStageUDF))"
"""Title of the processes of Ray Data that hold an engine."""


def start(source: Path, target: Path, ray: LocalRay) -> subprocess.Popen[bytes]:
    variables = {**ray.variables, "RAY_DATA_DISABLE_PROGRESS_BARS": "1"}
    return start_example("ray_data.py", source, target, variables)


def done(target: Path) -> int:
    """Return how many rows a run that goes on would leave out."""
    files = target.with_name(f"{target.name}.checkpoint").glob("**/*.parquet")
    return sum(pq.read_metadata(file).num_rows for file in files if "pending" not in str(file))


@pytest.mark.long
def test_two_engines_of_which_one_is_killed_answer_as_one(
    local_ray: LocalRay,
    engine: LLM,
    hf_model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    tmp_path: Path,
) -> None:
    """The first run is killed as a whole; the second one goes on, and loses an engine."""
    prompts = short_prompts(ROWS)
    source, target = tmp_path / "input.jsonl", tmp_path / "answers"
    write_rows(source, prompts, "prompt")

    first = start(source, target, local_ray)
    wait_until(lambda: done(target), first, "a row was answered")
    first.kill()
    first.wait()
    kept = done(target)
    assert 0 < kept < ROWS
    second = start(source, target, local_ray)
    wait_until(lambda: done(target) > kept, second, "another row was answered")
    kill(local_ray.oldest(ENGINE))
    assert done(target) < ROWS
    assert second.wait(timeout=600) == 0, target.with_suffix(".log").read_text()[-3000:]

    rows = pq.read_table(target).to_pylist()
    assert len(rows) == ROWS
    answers = {row["id"]: row["text"] for row in rows}
    assert answers == of_one_engine(engine, prompts, CONFIG)
    asked = of_transformers(hf_model, tokenizer, prompts, CONFIG)
    assert {row: answers[row] for row in asked} == asked
