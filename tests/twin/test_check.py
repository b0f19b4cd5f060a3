"""What an engine asks before it starts, and what it is refused with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import Gemma3TextConfig, LlamaConfig, OlmoeConfig, PreTrainedConfig

from tests.twin.cases import SIZES, start
from vllm.hf_layers.definition import configuration
from vllm.hf_layers.definition.finding import Finding, noted_definition
from vllm.twin import check, definition
from vllm.twin.process import Answer, Task, examine_elsewhere

pytestmark = pytest.mark.usefixtures("empty_cache")


@pytest.fixture
def examined(monkeypatch: pytest.MonkeyPatch) -> list[Task]:
    """What was examined, and not found in the cache."""
    tasks: list[Task] = []

    def remember(task: Task) -> Answer:
        tasks.append(task)
        return examine_elsewhere(task)

    monkeypatch.setattr(definition, "examine_elsewhere", remember)
    return tasks


def clipping() -> PreTrainedConfig:
    return OlmoeConfig(**SIZES, num_experts=4, num_experts_per_tok=2, clip_qkv=0.3)


@pytest.mark.some(2)
@pytest.mark.parametrize(
    ("flags", "start_of_sentence"),
    [
        ({"hf_compat": True}, "hf_compat=True: vLLM computes this model otherwise"),
        ({"hf_compat": "strict"}, 'hf_compat="strict": vLLM computes this model otherwise'),
        ({"deterministic": True}, "deterministic=True: vLLM computes this model otherwise"),
    ],
)
def test_another_function_is_refused(
    flags: dict[str, Any], start_of_sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=r"because of clip_qkv=0\.3") as error:
        start(clipping(), tmp_path, model_impl="vllm", **flags)
    assert str(error.value).startswith(start_of_sentence)
    assert 'hf_compat="rules"' in str(error.value)


@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"hf_compat": "exact"},
        {"hf_compat": "rules"},
        {"hf_compat": "rules", "deterministic": True},
    ],
)
def test_nothing_is_asked_where_nothing_is_promised(
    flags: dict[str, Any], tmp_path: Path, examined: list[Task]
) -> None:
    config = start(clipping(), tmp_path, **flags)
    assert noted_definition(config) is None
    assert not examined


def test_a_model_is_examined_once(tmp_path: Path, examined: list[Task]) -> None:
    first, second = (start(LlamaConfig(**SIZES), tmp_path, hf_compat=True) for _ in range(2))
    assert len(examined) == 1
    assert noted_definition(first) == noted_definition(second)
    finding = noted_definition(first)
    assert finding is not None
    assert finding.agreement == "bits"


@pytest.mark.some(2)
@pytest.mark.parametrize(
    "change",
    [{"max_model_len": 32}, {"dtype": "float32"}, {"hf_overrides": {"rms_norm_eps": 0.5}}],
)
def test_what_changes_a_finding_makes_another(
    change: dict[str, Any], tmp_path: Path, examined: list[Task]
) -> None:
    start(LlamaConfig(**SIZES), tmp_path, hf_compat=True)
    start(LlamaConfig(**SIZES), tmp_path, hf_compat=True, **change)
    assert len(examined) == 2


@pytest.mark.some(2)
@pytest.mark.parametrize("content", ["", "{}", '{"digest": "another", "finding": {}}', "[1]"])
def test_a_damaged_or_foreign_file_is_made_anew(
    content: str, tmp_path: Path, examined: list[Task], empty_cache: Path
) -> None:
    start(LlamaConfig(**SIZES), tmp_path, hf_compat=True)
    (file,) = empty_cache.iterdir()
    whole = file.read_text()
    file.write_text(content)
    start(LlamaConfig(**SIZES), tmp_path, hf_compat=True)
    assert len(examined) == 2
    assert json.loads(file.read_text()) == json.loads(whole)


def test_what_could_not_be_compared_is_refused_by_strict_mode_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unknown = Answer(Finding("unknown", "its twin does not run"))
    monkeypatch.setattr(definition, "examine_elsewhere", lambda _: unknown)
    found = noted_definition(start(LlamaConfig(**SIZES), tmp_path, hf_compat=True))
    assert found == unknown.finding
    with pytest.raises(
        ValueError, match=r"refuses LlamaForCausalLM, since .* its twin does not run"
    ):
        start(LlamaConfig(**SIZES), tmp_path, hf_compat="strict")


def test_overrides_that_leave_a_rope_without_its_theta(tmp_path: Path) -> None:
    """Neither side makes a model then, and the engine ends in a TypeError."""
    stretched = {"rope_type": "linear", "factor": 2.0}
    config = LlamaConfig(**SIZES, rope_parameters={"rope_type": "default", "rope_theta": 5e5})
    with pytest.raises(ValueError, match=r'add the model.s own, "rope_theta": 500000\.0'):
        start(config, tmp_path, hf_compat=True, hf_overrides={"rope_scaling": stretched})
    whole = stretched | {"rope_theta": 5e5}
    found = start(config, tmp_path, hf_compat=True, hf_overrides={"rope_scaling": whole})
    finding = noted_definition(found)
    assert finding is not None
    assert finding.agreement == "bits"


def test_overrides_that_leave_a_kind_of_layer_without_a_rope() -> None:
    one = {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}
    with pytest.raises(
        configuration.IncompleteRope, match="leaves sliding_attention and full_attention w"
    ):
        configuration._check_theta(Gemma3TextConfig(), {"rope_parameters": one})


def test_a_twin_that_stops_is_no_refusal_and_names_what_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sizes may be to blame; if not, the engine's own error says nothing of what to do."""
    stops = Answer(Finding("unknown", "vLLM does not run its twin: KeyError: 'no such weight'"))
    monkeypatch.setattr(definition, "examine_elsewhere", lambda _: stops)
    said: list[str] = []
    monkeypatch.setattr(check.logger, "log", lambda _, form, *args: said.append(form % args))
    start(LlamaConfig(**SIZES), tmp_path, hf_compat=True)
    assert 'may end in the same error: use hf_compat="exact".' in said[0]
