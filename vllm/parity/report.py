"""Runs both sides and puts together what there is to tell."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import torch
from tqdm.auto import tqdm

from vllm.fork.startup.torch_switches import with_fresh_switches
from vllm.parity import drift
from vllm.parity.causes import likely_cause
from vllm.parity.differences import Comparison, compare, first_difference
from vllm.parity.drift import LayerDrift
from vllm.parity.machine import machine
from vllm.parity.setting import MODES, Setting
from vllm.parity.sides import Answer, HuggingFace, engine, engine_answers

NUM_DRIFT_TOKENS = 16
"""Tokens that are computed one by one from a KV cache to measure drift."""

CACHED, PADDED = "HF, cache / none", "HF, padded / alone"
"""Ways in which Hugging Face differs from itself."""


@dataclass(frozen=True)
class Run:
    """An engine in one mode and dtype, beside Hugging Face.

    Attributes:
        mode: of `MODES`.
        dtype: of both.
        comparisons: of each prompt.
        prompt_drift: of each layer, over a prompt computed at once.
        decode_drift: of each layer, over a prompt and tokens computed one by one from the KV cache,
            as long as both sides choose the same.
        first_layer: the first whose output for the prompt differs.
        first_operation: the first module in it that does.
        cause: a sentence, None if all answers are equal.
    """

    mode: str
    dtype: str
    comparisons: list[Comparison]
    prompt_drift: list[LayerDrift]
    decode_drift: list[LayerDrift]
    first_layer: int | None
    first_operation: str | None
    cause: str | None

    @property
    def name(self) -> str:
        """Of the run among others."""
        return f"{self.mode}, {self.dtype}"

    @property
    def first_to_differ(self) -> str:
        """Layer and operation; "-" if there is none."""
        parts = ["-" if self.first_layer is None else f"layer {self.first_layer}"]
        return ", ".join([*parts, self.first_operation] if self.first_operation else parts)

    @property
    def max_difference(self) -> float:
        """The largest of all prompts."""
        return max(one.max_difference for one in self.comparisons)

    @property
    def num_equal(self) -> int:
        """Answers that are equal to the last token."""
        return sum(one.first_difference is None for one in self.comparisons)

    @property
    def share_of_bits(self) -> float:
        """Share of the compared values that have the same bits."""
        compared = sum(one.num_compared for one in self.comparisons)
        return sum(one.num_equal for one in self.comparisons) / max(compared, 1)


@dataclass(frozen=True)
class Report:
    """All runs of a call.

    Attributes:
        setting: of the first dtype.
        machine: see `machine.machine`.
        token_texts: of the tokens at first differences.
        hf_drift: for each dtype, how far Hugging Face with a KV cache is from itself without one,
            and padded beside a text of twice the length from itself alone (`CACHED`, `PADDED`): of
            each layer, then of the logits.
        runs: for each dtype and mode.
    """

    setting: Setting
    machine: dict[str, str | int]
    token_texts: dict[int, str]
    hf_drift: dict[str, dict[str, list[LayerDrift]]]
    runs: list[Run]

    def drift_lines(self, dtype: str) -> dict[str, list[LayerDrift]]:
        """Return every drift in a dtype by name: Hugging Face's own, then each run's."""
        lines = dict(self.hf_drift[dtype])
        for run in self.runs:
            if run.dtype == dtype:
                lines[f"{run.mode}, prompt"] = run.prompt_drift
                lines[f"{run.mode}, decoding"] = run.decode_drift
        return lines

    def as_json(self) -> str:
        """Return the report as a JSON object."""
        return json.dumps(asdict(self), indent=1)

    def write(self, path: str | Path) -> None:
        """Write it as JSON."""
        Path(path).write_text(self.as_json() + "\n")


def compare_with_hf(
    setting: Setting,
    modes: Sequence[str] = MODES[:2],
    dtypes: Sequence[str] | None = None,
) -> Report:
    """Answer the same prompts with Transformers and with this vLLM, and compare.

    Args:
        setting: model, prompts and lengths.
        modes: how to run the engine, of `MODES`.
        dtypes: of both sides; that of the setting by default.

    Raises:
        ValueError: a mode or dtype is none, or a mode has not what the setting asks for.
    """
    unknown = set(modes) - set(MODES)
    if unknown:
        raise ValueError(f"mode={unknown.pop()!r} is none of {', '.join(MODES)}.")
    settings = [replace(setting, dtype=dtype) for dtype in dtypes or (setting.dtype,)]
    runs: list[Run] = []
    hf_drift: dict[str, dict[str, list[LayerDrift]]] = {}
    texts: dict[int, str] = {}
    with tqdm(total=len(settings) * (1 + len(modes)), desc="parity") as bar:
        for one in settings:
            side = _Reference(one)
            hf_drift[one.dtype] = side.drift
            bar.update()
            for mode in modes:
                run = _run(side, mode)
                tokens = {c.token_id for found in run.comparisons for c in found.candidates}
                texts |= {token: side.hf.tokenizer.decode([token]) for token in sorted(tokens)}
                runs.append(run)
                bar.update()
    return Report(setting, machine(), texts, hf_drift, runs)


class _Reference:
    """What Hugging Face answers, and its hidden states for the first prompt and its answer."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.hf = HuggingFace(setting)
        self.prompts = self.hf.prompt_ids()
        self.answers: list[Answer] = self.hf.answers()
        self.prompt = self.prompts[0]
        self.text = self.prompt + self._greedy()
        self.at_once = drift.hf_outputs(self.hf.model, self.text)
        self.cached = drift.hf_outputs(self.hf.model, self.text, num_cached=len(self.prompt))
        padded = drift.hf_outputs(
            self.hf.model, self.text, num_cached=len(self.prompt), beside=2 * self.text
        )
        self.drift = {
            CACHED: drift.compare_layers(self.at_once, self.cached),
            PADDED: drift.compare_layers(self.cached, padded),
        }

    @with_fresh_switches()
    def _greedy(self) -> list[int]:
        ids = torch.tensor([self.prompt], device=self.hf.model.device)
        found = self.hf.model.generate(
            ids, max_new_tokens=NUM_DRIFT_TOKENS, do_sample=False, eos_token_id=-1, pad_token_id=0
        )
        return found[0, len(self.prompt) :].tolist()


def _run(side: _Reference, mode: str) -> Run:
    setting, prompts = side.setting, side.prompts
    with engine(setting, mode, max(map(len, [*prompts, side.text]))) as llm:
        answers = engine_answers(llm, setting, prompts)
        at_once, _ = drift.engine_outputs(llm, side.text)
        cached, tokens = drift.engine_outputs(llm, side.prompt, num_tokens=NUM_DRIFT_TOKENS)
        prompt_drift = drift.compare_layers(side.at_once, at_once)
        layer = drift.first_different_layer(prompt_drift)
        operation = None
        if layer is not None:
            start = partial(drift.start_operations, layer=layer)
            operation = drift.first_different_operation(
                drift.hf_outputs(side.hf.model, side.text, start),
                drift.engine_outputs(llm, side.text, start)[0],
            )
    same = first_difference(tokens, side.text[len(side.prompt) :])
    num_same = len(side.prompt) + (len(tokens) if same is None else same)
    comparisons = [compare(hf, ours) for hf, ours in zip(side.answers, answers, strict=True)]
    return Run(
        mode=mode,
        dtype=setting.dtype,
        comparisons=comparisons,
        prompt_drift=prompt_drift,
        decode_drift=drift.compare_layers(side.cached, cached, num_same),
        first_layer=layer,
        first_operation=operation,
        cause=likely_cause(setting, mode, comparisons, operation),
    )
