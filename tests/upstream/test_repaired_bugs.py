"""The upstream bugs that the patch series repairs: shown to be there, and to be gone.

When a test fails in its upstream half, the pinned release has repaired the bug itself, and the
patch can go.
"""

from __future__ import annotations

import pytest

from tests.engines import MODEL
from tests.upstream.trees import ProbeFailed, run_probe

ARGUMENTS = {"model": str(MODEL)}


def test_seeded_request_with_chunked_prefill() -> None:
    with pytest.raises(ProbeFailed, match=r"CPU Generator does not use offset|EngineDeadError"):
        run_probe("seeded_chunked_prefill", upstream=True, arguments=ARGUMENTS)
    ours = run_probe("seeded_chunked_prefill", upstream=False, arguments=ARGUMENTS)
    assert len(ours["alone"]) == 16
    assert ours["alone"] == ours["beside"], "discarded draws have disturbed the generator"


def test_prompt_embeds_with_penalty() -> None:
    theirs = run_probe("prompt_embeds_penalty", upstream=True, arguments=ARGUMENTS)
    assert theirs["first"] != theirs["second"], "upstream no longer reads stale tokens"
    ours = run_probe("prompt_embeds_penalty", upstream=False, arguments=ARGUMENTS)
    assert ours["first"] == ours["second"] == theirs["first"]


def test_disabled_progress_bar() -> None:
    def run(upstream: bool) -> object:
        return run_probe(
            "disabled_progress_bar", upstream=upstream, arguments=ARGUMENTS, TQDM_DISABLE="1"
        )

    assert "ZeroDivisionError" in str(run(upstream=True))
    assert run(upstream=False) == 1


def test_machine_that_reports_little_memory() -> None:
    def run(upstream: bool, chosen: bool) -> object:
        arguments = {**ARGUMENTS, "chosen": chosen}
        return run_probe("little_memory", upstream=upstream, arguments=arguments)

    refusal = "less than desired CPU memory utilization"
    assert refusal in str(run(upstream=True, chosen=False))
    assert run(upstream=False, chosen=False) == 4
    assert refusal in str(run(upstream=False, chosen=True)), "a chosen fraction must stay a promise"


def test_lora_on_cpu_leaves_other_requests_alone() -> None:
    assert run_probe("lora_without_adapter", upstream=True) == [[3.0, 3.0], [3.0, 3.0]]
    assert run_probe("lora_without_adapter", upstream=False) == [[3.0, 0.0], [3.0, 0.0]]
