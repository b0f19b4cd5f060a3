"""Grammars are tried before the engine compiles them, and watched while it follows them."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import psutil
import pytest
import xgrammar
from transformers import PreTrainedTokenizerBase

from tests.reference import prompt_texts
from vllm import SamplingParams
from vllm.hf_compat.grammars.process import Trial
from vllm.hf_compat.grammars.trials import Trials
from vllm.sampling_params import StructuredOutputsParams

if TYPE_CHECKING:
    from vllm import LLM

GIB = 1 << 30
AMBIGUOUS = 's ::= s s | "a" | [a-z ] | ""'
"""After a few dozen characters a token of it takes seconds."""


def schema(num_properties: int, least: int) -> str:
    properties = {f"p{i}": {"type": "string"} for i in range(num_properties)}
    return json.dumps({"type": "object", "properties": properties, "minProperties": least})


@pytest.fixture(scope="module")
def trials(tokenizer: PreTrainedTokenizerBase) -> Iterator[Trials]:
    info = xgrammar.TokenizerInfo.from_huggingface(tokenizer)
    trials = Trials(info.serialize_json())
    yield trials
    trials.close()


def trial(method: str, text: str, seconds: int = 2, num_bytes: int = GIB) -> Trial:
    return Trial(method, (text,), {}, seconds, num_bytes)


PASSING = [
    trial("compile_regex", r"[a-z]{2,9}( [a-z]{2,9})*\."),
    trial("compile_json_schema", schema(30, 1)),
    trial("compile_grammar", 'root ::= "yes" | "no" root'),
    trial("compile_lark", 'start: "yes" | "no" start'),
]
FAILING = [
    (trial("compile_regex", "a+("), "at position 4: The parenthesis is not closed", False),
    (trial("compile_grammar", "root ::= nothing"), "nothing", False),
    (trial("compile_json_schema", schema(300, 100), seconds=1), "longer to compile", True),
    (trial("compile_json_schema", schema(300, 100), num_bytes=32 << 20), "more memory", True),
    (trial("compile_grammar", f"root ::= s\n{AMBIGUOUS}"), "longer than a grammar may", True),
]


def test_trials_side_by_side(trials: Trials) -> None:
    with ThreadPoolExecutor(8) as pool:
        outcomes = [*pool.map(trials.run, [*PASSING, *(one for one, _, _ in FAILING), *PASSING])]
    assert outcomes[: len(PASSING)] == outcomes[-len(PASSING) :] == [None] * len(PASSING)
    for (_, text, is_limit), outcome in zip(FAILING, outcomes[len(PASSING) :], strict=False):
        assert outcome is not None
        assert not re.search(r"\d\d:\d\d|\.cc", outcome[0]), "a refusal is the same at any time"
        assert (text in outcome[0], outcome[1]) == (True, is_limit), outcome


def command_of(process: psutil.Process) -> str:
    """Return a process's command line, which one that has just ended has not any more."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def test_a_trial_that_is_stopped(trials: Trials) -> None:
    """However its process ends: the request has its reason, and the next trial its answer."""
    assert trials.run(PASSING[0]) is None
    (process,) = (one for one in psutil.Process().children() if "process.py" in command_of(one))
    for end_all in (False, True):
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(trials.run, trial("compile_json_schema", schema(300, 100), 60))
            while not (children := process.children()):
                assert not answer.done()
                time.sleep(0.01)
            os.kill(process.pid if end_all else children[0].pid, signal.SIGKILL)
            outcome = answer.result(timeout=30)
        psutil.wait_procs(children, timeout=30)
        assert not any(child.is_running() for child in children)
        assert outcome is not None
        assert outcome[1]
        assert trials.run(PASSING[0]) is None


def answers(engine: LLM, *structures: dict[str, Any], max_tokens: int = 48) -> list[Any]:
    params = [
        SamplingParams(
            temperature=0.0,
            max_tokens=max_tokens,
            structured_outputs=StructuredOutputsParams(**structure),
        )
        for structure in structures
    ]
    prompts = prompt_texts(len(structures))
    return [one.outputs[0] for one in engine.generate(prompts, params, use_tqdm=False)]


def test_each_grammar_has_the_backend_that_can_follow_it(engine: LLM) -> None:
    """Upstream's first request chooses for all, and xgrammar does not look at multipleOf."""
    number = {"type": "integer", "minimum": 100, "maximum": 999}
    first, second, third = answers(
        engine, {"regex": "[0-9]{3}"}, {"json": {**number, "multipleOf": 77}}, {"json": number}
    )
    assert len(first.text) == 3
    assert first.text.isdigit()
    assert int(second.text) % 77 == 0
    assert 100 <= int(third.text) <= 999


def test_a_grammar_that_slows_down_ends_its_request_alone(engine: LLM) -> None:
    """It begins with more tokens than a trial follows."""
    begin = "q7zk" * 40
    slow = {"grammar": f'root ::= "{begin}" s\n{AMBIGUOUS}'}
    expected = answers(engine, {"regex": "[a-z ]{200,300}"}, max_tokens=400)[0].text
    good, bad = answers(engine, {"regex": "[a-z ]{200,300}"}, slow, max_tokens=400)
    assert good.text == expected
    assert bad.finish_reason == "error"
    assert "longer than a grammar may" in bad.stop_reason
    assert bad.text.startswith(begin)
