"""Wrong arguments: one sentence that names the op and the argument, and nothing changed."""

from typing import Any

import pytest
import torch

from tests.kernels.logits.seen_token_cases import int32
from vllm import fork_kernels
from vllm.fork_kernels.logits import checks

ROWS, VOCAB_SIZE, WORDS = 2, 40, 2


def mark_arguments() -> dict[str, torch.Tensor]:
    return {
        "seen": torch.zeros(ROWS, WORDS, dtype=torch.int32),
        "slots": int32([0, 1]),
        "token_ids": int32([3, 4]),
    }


def apply_arguments() -> dict[str, torch.Tensor]:
    return {
        "logits": torch.ones(ROWS, VOCAB_SIZE),
        "seen": torch.full((ROWS, WORDS), -1, dtype=torch.int32),
        "slots": int32([0, 1]),
        "penalties": torch.full((ROWS,), 2.0, dtype=torch.float64),
    }


def draw_arguments() -> dict[str, torch.Tensor]:
    return {
        "probs": torch.ones(ROWS, VOCAB_SIZE),
        "states": torch.stack([fork_kernels.seeded_state(0), fork_kernels.seeded_state(1)]),
        "slots": int32([0, 1]),
        "offsets": torch.zeros(ROWS, dtype=torch.int64),
    }


# argument, wrong value, sentence
MARK_ERRORS = [
    ("seen", torch.zeros(2, 2, dtype=torch.int64), "seen must have dtype int32, but has int64."),
    ("seen", torch.zeros(4, dtype=torch.int32), r"seen must have 2 dimension\(s\), but has 1."),
    ("seen", torch.zeros(2, 4, dtype=torch.int32)[:, ::2], "seen must be contiguous."),
    ("slots", torch.zeros(2, dtype=torch.int64), "slots must have dtype int32, but has int64."),
    ("slots", int32([0, 0, 0, 0])[::2], "slots must be contiguous."),
    ("slots", int32([0, 1]).unsqueeze(0), r"slots must have 1 dimension\(s\), but has 2."),
    ("token_ids", torch.zeros(2), "token_ids must have dtype int32 or int64, but has float32."),
    ("token_ids", int32([1, 2, 3]), "token_ids must have one entry for each of the 2 slots, but"),
    ("token_ids", int32([1, 2]).to("meta"), "token_ids must be on the same device as the tensor"),
]
APPLY_ERRORS = [
    ("logits", torch.ones(2, 40).double(), "logits must have dtype float32, but has float64."),
    ("logits", torch.ones(2, 40).bfloat16(), "logits must have dtype float32, but has bfloat16."),
    ("logits", torch.ones(40), r"logits must have 2 dimension\(s\), but has 1."),
    ("logits", torch.ones(40, 2).t(), "the last dimension of logits must be contiguous, but has"),
    ("logits", torch.ones(1, 40).expand(2, 40), "the rows of logits must not overlap, but their"),
    ("seen", torch.zeros(2, 2), "seen must have dtype int32, but has float32."),
    ("seen", torch.zeros(2, 3, dtype=torch.int32), "seen must have 2 words a row for 40 tokens"),
    ("slots", int32([0]), "slots must have one entry for each of the 2 rows of logits, but has 1."),
    ("slots", torch.zeros(2, dtype=torch.int64), "slots must have dtype int32, but has int64."),
    ("penalties", torch.ones(2).half(), "penalties must have dtype float64, but has float16."),
    (
        "penalties",
        torch.ones(3).double(),
        "penalties must have one entry for each of the 2 rows of logits",
    ),
    ("penalties", torch.ones(4).double()[::2], "penalties must be contiguous."),
    (
        "penalties",
        torch.ones(2).double().to("meta"),
        "penalties must be on the same device as the tensor",
    ),
]
DRAW_ERRORS = [
    ("probs", torch.ones(2, 40).double(), "probs must have dtype float32, but has float64."),
    ("probs", torch.ones(40), r"probs must have 2 dimension\(s\), but has 1."),
    ("probs", torch.ones(40, 2).t(), "the last dimension of probs must be contiguous, but has"),
    ("states", torch.zeros(2, 625), "states must have dtype int32, but has float32."),
    (
        "states",
        torch.zeros(625, dtype=torch.int32),
        r"states must have 2 dimension\(s\), but has 1",
    ),
    ("states", torch.zeros(2, 624, dtype=torch.int32), "states must have 625 words a row, but has"),
    ("states", torch.zeros(2, 1250, dtype=torch.int32)[:, ::2], "states must be contiguous."),
    ("slots", int32([0]), "slots must have one entry for each of the 2 rows of probs, but has 1."),
    ("slots", torch.zeros(2, dtype=torch.int64), "slots must have dtype int32, but has int64."),
    ("offsets", int32([0, 0]), "offsets must have dtype int64, but has int32."),
    ("offsets", torch.zeros(3, dtype=torch.int64), "offsets must have one entry for each of the 2"),
    ("offsets", torch.zeros(4, dtype=torch.int64)[::2], "offsets must be contiguous."),
]


@pytest.mark.parametrize(("name", "value", "sentence"), MARK_ERRORS)
def test_mark_seen_tokens(ops: Any, name: str, value: torch.Tensor, sentence: str) -> None:
    with pytest.raises(RuntimeError, match=f"^mark_seen_tokens: {sentence}"):
        ops.mark_seen_tokens(**mark_arguments() | {name: value})


@pytest.mark.parametrize(("name", "value", "sentence"), APPLY_ERRORS)
def test_apply_repetition_penalty(ops: Any, name: str, value: torch.Tensor, sentence: str) -> None:
    with pytest.raises(RuntimeError, match=f"^apply_repetition_penalty: {sentence}"):
        ops.apply_repetition_penalty(**apply_arguments() | {name: value})


@pytest.mark.parametrize(("name", "value", "sentence"), DRAW_ERRORS)
def test_draw_tokens(ops: Any, name: str, value: torch.Tensor, sentence: str) -> None:
    with pytest.raises(RuntimeError, match=f"^draw_tokens: {sentence}"):
        ops.draw_tokens(**draw_arguments() | {name: value})


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"slots": int32([0, 2])}, r"slots\[1\] is 2, but states has 2 rows."),
        ({"offsets": torch.tensor([0, -1])}, r"offsets\[1\] is -1, but the numbers before 0 are"),
        (
            {"slots": int32([1, 1]), "offsets": torch.tensor([0, VOCAB_SIZE - 1])},
            r"offsets\[1\] is 39, but the numbers before 40 are behind its state or another row's.",
        ),
        (
            {"slots": int32([1, 1]), "offsets": torch.tensor([5, 5])},
            r"offsets\[\d\] is 5, but the numbers before 45 are behind its state or another row's.",
        ),
    ],
)
def test_draw_out_of_range_changes_no_state(
    ops: Any, wrong: dict[str, torch.Tensor], sentence: str
) -> None:
    arguments = draw_arguments()
    states = arguments["states"].clone()
    with pytest.raises(RuntimeError, match=f"^draw_tokens: {sentence}"):
        ops.draw_tokens(**arguments | wrong)
    assert torch.equal(arguments["states"], states)


@pytest.mark.parametrize("position", [-1, 0, 313])
def test_draw_from_what_is_no_state(ops: Any, position: int) -> None:
    arguments = draw_arguments()
    arguments["states"][1, 624] = position
    sentence = rf"states\[1\] must have a position in 1..312, but has {position}."
    with pytest.raises(RuntimeError, match=f"^draw_tokens: {sentence}"):
        ops.draw_tokens(**arguments)


@pytest.mark.parametrize(
    ("name", "values", "sentence"),
    [("slots", [0, 2], "slots"), ("token_ids", [3, 64], "token_ids")],
)
def test_mark_out_of_range_sets_no_bit(
    ops: Any, name: str, values: list[int], sentence: str
) -> None:
    arguments = mark_arguments() | {name: int32(values)}
    with pytest.raises(RuntimeError, match=f"^mark_seen_tokens: {sentence}"):
        ops.mark_seen_tokens(**arguments)
    assert not arguments["seen"].any()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("slots", int32([0, 2])),
        ("penalties", torch.tensor([2.0, 0.0]).double()),
        ("penalties", torch.tensor([2.0, -1.0]).double()),
        ("penalties", torch.tensor([2.0, torch.nan]).double()),
    ],
)
def test_apply_out_of_range_changes_no_logit(ops: Any, name: str, value: torch.Tensor) -> None:
    arguments = apply_arguments() | {name: value}
    with pytest.raises(RuntimeError, match=f"^apply_repetition_penalty: {name}"):
        ops.apply_repetition_penalty(**arguments)
    assert torch.equal(arguments["logits"], torch.ones(ROWS, VOCAB_SIZE))


@pytest.mark.parametrize(("name", "value", "_"), MARK_ERRORS)
def test_tracing_says_the_same_of_mark(name: str, value: torch.Tensor, _: str) -> None:
    arguments = mark_arguments() | {name: value}
    assert _sentence(fork_kernels.mark_seen_tokens, arguments) == _sentence(
        checks.mark_seen_tokens, arguments
    )


@pytest.mark.parametrize(("name", "value", "_"), APPLY_ERRORS)
def test_tracing_says_the_same_of_apply(name: str, value: torch.Tensor, _: str) -> None:
    arguments = apply_arguments() | {name: value}
    assert _sentence(fork_kernels.apply_repetition_penalty, arguments) == _sentence(
        checks.apply_repetition_penalty, arguments | {"reciprocal": False}
    )


@pytest.mark.parametrize(("name", "value", "_"), DRAW_ERRORS)
def test_tracing_says_the_same_of_draw(name: str, value: torch.Tensor, _: str) -> None:
    arguments = draw_arguments() | {name: value}
    assert _sentence(fork_kernels.draw_tokens, arguments) == _sentence(
        checks.draw_tokens, arguments
    )


def _sentence(function: Any, arguments: dict[str, Any]) -> str:
    with pytest.raises(RuntimeError) as error:
        function(**arguments)
    return str(error.value)
