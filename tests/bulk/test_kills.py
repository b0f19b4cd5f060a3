"""A run that is killed at any moment goes on, and its file is that of an uninterrupted one."""

from __future__ import annotations

import json
import multiprocessing
import random
import time
from pathlib import Path

from tests.bulk.plans import answer, answer_file
from tests.sizes import size
from vllm.bulk.output import summary_of

NUM_ROWS = size(400, 4000)
NUM_KILLS = size(25, 200)
DELAY_S = 0.02


def test_many_kills(tmp_path: Path) -> None:
    """Of the run's process, not of an engine's: that is `test_command`."""
    source, output = tmp_path / "input.jsonl", tmp_path / "output.jsonl"
    source.write_text("".join(json.dumps({"prompt": str(i)}) + "\n" for i in range(NUM_ROWS)))
    rng = random.Random(0)
    context = multiprocessing.get_context("fork")
    kills = runs = 0
    while kills < NUM_KILLS:
        for leftover in tmp_path.glob("output*"):
            leftover.unlink()
        runs += 1
        while not summary_of(output).exists() or output.with_name("output.jsonl.log").exists():
            process = context.Process(target=answer_file, args=(source, output, DELAY_S))
            process.start()
            time.sleep(rng.uniform(0, 0.2))
            kills += process.is_alive()
            process.kill()
            process.join()
        assert output.read_text() == "".join(answer(i).line + "\n" for i in range(NUM_ROWS))
    assert kills > 3 * runs
