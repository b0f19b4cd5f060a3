"""The upstream bugs that the patches repair: shown to be gone, and in the long run to be there.

When a test fails in its upstream half, the pinned release has repaired the bug itself, and the
patch can go.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.engines import MODEL
from tests.upstream.trees import run_probe

ARGUMENTS = {"model": str(MODEL)}


@pytest.fixture(scope="module")
def ours() -> Any:
    return run_probe("repaired_bugs", upstream=False, arguments=ARGUMENTS, TQDM_DISABLE="1")


def test_seeded_request_with_chunked_prefill(ours: Any) -> None:
    alone, beside = ours["seeded"]
    assert len(alone) == 16
    assert alone == beside, "discarded draws have disturbed the generator"


def test_prompt_embeds_with_penalty(ours: Any) -> None:
    first, second = ours["embeds"]
    assert first == second, "the penalty reads an earlier request's tokens"


def test_disabled_progress_bar(ours: Any) -> None:
    assert ours["progress_bar"] == "1"


@pytest.mark.long
def test_upstream_has_the_bugs(ours: Any) -> None:
    theirs = run_probe("repaired_bugs", upstream=True, arguments=ARGUMENTS, TQDM_DISABLE="1")
    assert "CPU Generator does not use offset" in str(theirs["seeded"])
    assert "ZeroDivisionError" in theirs["progress_bar"]
    first, second = theirs["embeds"]
    assert first != second, "upstream no longer reads stale tokens"
    assert ours["embeds"] == [first, first]


@pytest.mark.long
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
