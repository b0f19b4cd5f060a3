"""The bits that a GPU has to have."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.gpu import (
    differences,
    digests,
    model_bits,
    real_shapes,
    sanitizer,
)
from tests.emulated_gpu.device import GPU, emulated_gpu
from vllm.fork_ops.portable_product import portable_product


def test_every_operation_of_the_start_of_an_engine_has_its_bits_here() -> None:
    all_found = list(digests.self_check("cpu"))
    found = all_found[-1]
    assert found["equal"] == found["of"] >= 6
    assert found["differing"] == []
    assert "during" not in found
    told = [one for one in all_found if "during" in one]  # before each group, that it begins
    assert [one["equal"] for one in told] == list(range(found["of"]))
    assert len({one["during"] for one in told}) == found["of"]


def test_other_and_missing_digests_are_named() -> None:
    found = digests.compared({"a": "1", "b": "2", "c": "3"}, {"a": "1", "b": "3"})
    assert found == {"equal": 1, "of": 3, "differing": ["b", "c"]}


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


def test_real_shapes_find_what_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU both sides are equal; with an operation that is wrong for one number of rows, one
    result of each matrix is not. What fails is noted, and the other parts are compared.
    """
    monkeypatch.setattr(real_shapes, "ROWS", (1, 65, 70))
    monkeypatch.setattr(real_shapes, "ROWS_WITH_DIGITS", (1, 65, 70))
    (*_, last) = real_shapes.compare("tiny", torch.device("cpu"))
    assert last["equal"] == last["of"] >= 40
    really = portable_product

    def wrong(x: torch.Tensor, weight: Any, **more: Any) -> torch.Tensor:
        product = really(x, weight, **more)
        product[-1, -1] += len(x) == 65
        return product

    monkeypatch.setattr(real_shapes, "portable_product", wrong)
    monkeypatch.setattr(real_shapes, "portable_argmax", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        list(real_shapes.compare("tiny", torch.device("cpu")))

    def refused(_: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(real_shapes, "portable_argmax", refused)
    *_, rows, vocabulary = real_shapes.compare("tiny", torch.device("cpu"))
    assert rows["differing"] == [
        *("products: qkv, numbers, 65", "products: qkv, norm, 65", "products: o, numbers, 65"),
        *("products: gate_up, numbers, 65", "products: gate_up, norm, 65"),
        *("products: down, numbers, 65", "products: down, gated, 65"),
        "products: gate, numbers, 65",
    ]
    assert vocabulary["differences"]["vocabulary"] == {
        "error": "RuntimeError: an illegal memory access was encountered"
    }


def test_real_shapes_on_an_emulated_gpu(
    monkeypatch: pytest.MonkeyPatch, emulated_library: Path
) -> None:
    """The kernels themselves, on tensors of a GPU."""
    monkeypatch.setattr(real_shapes, "ROWS", (1, 17))
    monkeypatch.setattr(real_shapes, "ROWS_WITH_DIGITS", (1, 17))
    monkeypatch.setattr(real_shapes, "REQUESTS", {"all": [(1100, 1), (40, 40)]})
    with emulated_gpu() as gpu:
        (*_, last) = real_shapes.compare("tiny", GPU)
        assert gpu.calls["portable_digits_product"] == 6
        assert gpu.calls["portable_attention"] == 2
    assert last["differing"] == []
    assert last["equal"] >= 30


def test_what_the_sanitizer_says() -> None:
    values = '{"equal": 7, "of": 7, "differing": []}\n'
    clean = f"{values}========= ERROR SUMMARY: 0 errors\n"
    assert sanitizer.values_of("memcheck", clean)["differing"] == []
    found = sanitizer.values_of(
        "racecheck", f"{values}========= RACECHECK SUMMARY: 3 hazards displayed (2 errors, 1 ...)\n"
    )
    assert (found["errors"], found["differing"]) == (3, ["3 errors of racecheck"])
    for text in (values, "========= ERROR SUMMARY: 0 errors\n"):
        with pytest.raises(RuntimeError, match="memcheck ended without a summary or without"):
            sanitizer.values_of("memcheck", text)


def test_a_machine_without_the_sanitizer_says_where_it_comes_from(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sanitizer, "PLACES", ())
    with pytest.raises(FileNotFoundError, match="it comes with the CUDA toolkit"):
        sanitizer.sanitizer()
    program = tmp_path / "compute-sanitizer"
    program.write_text("#!/bin/sh\nshift 6\n\"$@\"\necho '========= ERROR SUMMARY: 0 errors'\n")
    program.chmod(0o755)
    found = sanitizer.checked("memcheck", "cpu")
    assert found["equal"] == found["of"] >= 6


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


def test_other_tokens_are_other_answers() -> None:
    one = model_bits.Answer(list(range(64)), ["x", "y"])
    other = model_bits.Answer([*range(32), 99, *range(33, 64)], ["x", "y"])
    found = digests.compared(dict(model_bits.named([one])), dict(model_bits.named([other])))
    assert found["differing"] == ["prompt 0, tokens from 32"]
