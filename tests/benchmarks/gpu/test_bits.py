"""The bits that a GPU has to have."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.gpu import bits, cases, differences, exact_bits, generate, model_bits, probes
from tests.emulated_gpu.device import emulated_gpu
from tests.engines import ROOT
from vllm.deterministic import self_check
from vllm.deterministic.self_check import EXPECTED
from vllm.fork_kernels.portable.product import portable_product


def printed(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_every_operation_of_the_start_of_an_engine_has_its_bits_here(
    capsys: pytest.CaptureFixture[str],
) -> None:
    count = bits.Count()
    bits.start(count, "cpu")
    assert count.values == {"equal": len(EXPECTED), "of": len(EXPECTED), "differing": {}}
    told = printed(capsys)  # before each group, that it begins
    assert [one["during"] for one in told] == list(EXPECTED)
    assert [one["equal"] for one in told] == list(range(len(EXPECTED)))


def test_a_wrong_bit_of_the_start_is_told_by_its_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    really = self_check.answers

    def wrong(device: str, names: list[str]) -> Iterator[tuple[str, list[torch.Tensor]]]:
        for name, tensors in really("cpu", names):
            if name == "norms" and device != "cpu":
                tensors[0].view(torch.uint8).flatten()[5] ^= 1
            yield name, tensors

    monkeypatch.setattr(self_check, "answers", wrong)
    count = bits.Count()
    bits.start(count, "other")
    assert [*count.values["differing"].values()] == ["other bits"]
    count.explain()
    assert count.values["equal"] == count.values["of"] - 1
    (found,) = count.values["differing"].values()
    assert (found["differ"], found["first"][0]["place"]) == (1, [5])


def test_what_differs_is_told_by_element() -> None:
    there = torch.arange(12.0).view(3, 4)
    here = there.clone()
    assert differences.difference(here, there) is None
    here[1, 2] = 6.5
    here[2, 0] = torch.nan
    assert differences.difference(here, there) == {
        "differ": 2,
        "of": 12,
        "largest": 0.5,
        "first": [
            {"place": [1, 2], "here": (6.5).hex(), "cpu": (6.0).hex()},
            {"place": [2, 0], "here": "nan", "cpu": (8.0).hex()},
        ],
    }
    zeros = torch.zeros(2), -torch.zeros(2)
    found = differences.difference(*zeros)
    assert found is not None
    assert found["differ"] == 2
    whole = torch.randn(3, 1 << 21)
    found = differences.difference(whole, -whole)
    assert found is not None
    assert found["differ"] == whole.numel()
    assert [one["place"] for one in found["first"]] == [[0, i] for i in range(5)]
    found = differences.difference(here, there.bfloat16())
    assert found is not None
    assert found["kinds"] == ["torch.float32 [3, 4]", "torch.bfloat16 [3, 4]"]


@pytest.fixture
def kept_shapes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The digests of a tiny model, as an archive has those of a real one."""
    monkeypatch.setattr(cases, "ROWS", (1, 17))
    monkeypatch.setattr(cases, "REQUESTS", {"all": [(1100, 1), (40, 40)]})
    file = tmp_path / "shapes.json"
    file.write_text(json.dumps({"model": "tiny", "digests": cases.digests("tiny")}))
    return file


def test_shapes_find_what_differs(monkeypatch: pytest.MonkeyPatch, kept_shapes: Path) -> None:
    """On the CPU all is equal; with an operation that is wrong for one number of rows, one result
    of each matrix is not. What fails is noted, and the other groups are compared.
    """
    count = bits.Count()
    bits.shapes(count, "cpu", kept_shapes)
    assert count.values["equal"] == count.values["of"] >= 30
    really = portable_product

    def wrong(x: torch.Tensor, weight: Any, **more: Any) -> torch.Tensor:
        product = really(x, weight, **more)
        product[-1, -1] += len(x) == 17
        return product

    def refused(_: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(cases, "portable_product", wrong)
    monkeypatch.setattr(cases, "portable_argmax", refused)
    count = bits.Count()
    bits.shapes(count, "cpu", kept_shapes)
    matrices = ("qkv: numbers", "qkv: norm", "o: numbers", "gate_up: numbers", "gate_up: norm",
                "down: numbers", "down: gated", "gate: numbers")  # fmt: skip
    assert list(count.values["differing"]) == [
        *(f"products, {name}, 17" for name in matrices), "vocabulary: all",
    ]  # fmt: skip
    assert count.values["differing"]["vocabulary: all"] == (
        "RuntimeError: an illegal memory access was encountered"
    )


def test_after_an_error_of_cuda_nothing_more_is_tried(
    monkeypatch: pytest.MonkeyPatch, kept_shapes: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would fail in every later group."""

    def broken(x: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(cases, "portable_product", broken)
    with pytest.raises(RuntimeError, match=r"^CUDA error"):
        bits.shapes(bits.Count(), "cpu", kept_shapes)
    last = printed(capsys)[-1]
    assert last["during"] == next(iter(cases.groups("tiny")))
    assert (last["equal"], last["of"]) == (0, 1)


@pytest.mark.long
def test_shapes_on_an_emulated_gpu(kept_shapes: Path, emulated_library: Path) -> None:
    """The kernels themselves, on tensors of a GPU."""
    count = bits.Count()
    with emulated_gpu() as gpu:
        bits.shapes(count, "cuda:0", kept_shapes)
        assert gpu.calls["portable_digits_product"] == 6
        assert gpu.calls["portable_attention"] == 2
    assert count.values["differing"] == {}


def test_draws_and_penalties_are_pytorchs(capsys: pytest.CaptureFixture[str]) -> None:
    count = bits.Count()
    bits.torch_draws(count, "cpu")
    assert count.values["equal"] == count.values["of"] == 45


@pytest.mark.parametrize("dtype", model_bits.DTYPES)
def test_this_cpu_has_the_recorded_logits(dtype: str) -> None:
    """Of the first 64 tokens of two answers; a stage compares all of them."""
    model = model_bits.attached_model(dtype, "cpu")
    expected = model_bits.expected_answers(dtype)
    assert len(expected) == len(model_bits.prompt_ids()) == 8
    for number in (0, 5):
        one = expected[number]
        assert len(one.tokens) == 256
        found = model_bits.read(model, model_bits.prompt_ids()[number], one.tokens[:64])
        assert found == one.digests[:2]
        assert len(set(one.digests)) == 8


def test_the_logits_of_an_engine_are_in_the_order_of_the_vocabulary() -> None:
    """Of each step it gives the chosen token and then the likeliest."""
    flat = SimpleNamespace(
        start_indices=[0, 4],
        end_indices=[4, 8],
        token_ids=[1, 1, 2, 0, 0, 2, 0, 1],
        logprobs=[3.0, 3.0, 2.0, -1.0, 5.0, 7.0, 5.0, 4.0],
    )
    assert model_bits.rows_of(flat).tolist() == [[-1.0, 3.0, 2.0], [5.0, 4.0, 7.0]]


def test_other_and_missing_digests_are_named() -> None:
    found = model_bits.compared({"a": "1", "b": "2", "c": "3"}, {"a": "1", "b": "3"})
    assert found == {"equal": 1, "of": 3, "differing": ["b", "c"]}


def test_other_tokens_are_other_answers() -> None:
    one = model_bits.Answer(list(range(64)), ["x", "y"])
    other = model_bits.Answer([*range(32), 99, *range(33, 64)], ["x", "y"])
    found = model_bits.compared(dict(model_bits.named([one])), dict(model_bits.named([other])))
    assert found["differing"] == ["prompt 0, tokens from 32"]


def test_logits_are_compared_until_a_token_differs() -> None:
    """What follows another token has another prompt."""
    logits = np.arange(12, dtype=np.float32).reshape(4, 3)
    expected = {"greedy 0": (np.array([1, 2, 3, 4]), logits)}
    assert exact_bits.compared(expected, expected)["equal"] == 4
    other = logits.copy()
    other[0, 0] = -0.0  # equal to 0.0, with other bits
    found = exact_bits.compared({"greedy 0": (np.array([1, 9, 3, 4]), other)}, expected)
    assert found == {
        "equal": 1, "of": 4, "differing": {"greedy 0": "1 of 4 tokens"},
        "equal answers": 0, "answers": 1,
    }  # fmt: skip


def test_generate_runs_without_vllm(tmp_path: Path) -> None:
    """Its switches of PyTorch are those of a process that has imported nothing else."""
    code = (
        "import sys; from benchmarks.gpu import generate; "
        "print(sorted(name for name in sys.modules if name.split('.')[0] == 'vllm'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True
    )
    assert done.stdout == "[]\n"
    assert generate.MODEL.is_dir()


def test_the_probes_say_what_they_need() -> None:
    """Here there is no GPU, which is an outcome and not a crash."""
    found = {name: probes.outcome(probe) for name, probe in probes.PROBES.items()}
    assert all("Error: " in one for one in found.values()), found
    assert "NVIDIA" in found[probes.EARLY] or "CUDA" in found[probes.EARLY]
