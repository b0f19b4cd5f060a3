"""The ops inside torch.compile(fullgraph=True): declared mutation, no graph break, same bits."""

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.kernels.logits.seen_token_cases import (
    adversarial_logits,
    assert_same_bits,
    hugging_face,
    int32,
    random_tokens,
)
from vllm import fork_kernels

ROWS, VOCAB_SIZE, PENALTY = 3, 1000, 1.2


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_step(backend: str, dynamic: bool) -> None:
    """Marking comes before reading the marks, and the caller's own logits stay as they were."""

    def step(
        logits: torch.Tensor, seen: torch.Tensor, slots: torch.Tensor, token_ids: torch.Tensor
    ) -> torch.Tensor:
        scores = logits.clone()
        penalties = torch.full(
            (logits.shape[0],), PENALTY, dtype=torch.float64, device=logits.device
        )
        fork_kernels.mark_seen_tokens(seen, slots, token_ids)
        fork_kernels.apply_repetition_penalty(scores, seen, slots, penalties)
        return scores

    compiled = torch.compile(step, fullgraph=True, backend=backend, dynamic=dynamic)
    logits = adversarial_logits(ROWS, VOCAB_SIZE)
    before = logits.clone()
    tokens = random_tokens(ROWS, 10, VOCAB_SIZE)
    seen = torch.zeros(ROWS, fork_kernels.num_mask_words(VOCAB_SIZE), dtype=torch.int32)
    for position in range(tokens.shape[1]):
        scores = compiled(logits, seen, int32(range(ROWS)), tokens[:, position].contiguous())
        expected = hugging_face(logits, tokens[:, : position + 1], PENALTY)
        assert_same_bits(scores, expected)
    assert_same_bits(logits, before)


def test_the_torch_implementation_is_traceable(ops: Any) -> None:
    def step(seen: torch.Tensor, logits: torch.Tensor) -> None:
        ops.mark_seen_tokens(seen, int32([0, 1, 2]), int32([1, 33, 999]))
        ops.apply_repetition_penalty(
            logits, seen, int32([0, 1, 2]), torch.full((3,), PENALTY).double()
        )

    logits = adversarial_logits(ROWS, VOCAB_SIZE)
    seen = torch.zeros(ROWS, fork_kernels.num_mask_words(VOCAB_SIZE), dtype=torch.int32)
    eager_logits, eager_seen = logits.clone(), seen.clone()
    step(eager_seen, eager_logits)
    torch.compile(step, fullgraph=True, backend="aot_eager")(seen, logits)
    assert torch.equal(seen, eager_seen)
    assert_same_bits(logits, eager_logits)


def test_opcheck() -> None:
    """Torch's own tests of a custom op: schema, fake function, tracing."""
    seen = torch.zeros(ROWS, fork_kernels.num_mask_words(VOCAB_SIZE), dtype=torch.int32)
    slots = int32(range(ROWS))
    torch.library.opcheck(
        torch.ops.vllm_fork.mark_seen_tokens.default, (seen, slots, int32([1, 2, 3]))
    )
    logits = torch.randn(ROWS, VOCAB_SIZE)
    torch.library.opcheck(
        torch.ops.vllm_fork.apply_repetition_penalty.default,
        (logits, seen, slots, torch.full((ROWS,), PENALTY).double(), False),
    )


def test_opcheck_of_draws() -> None:
    states = torch.stack([fork_kernels.seeded_state(seed) for seed in range(ROWS)])
    probs = torch.randn(ROWS, VOCAB_SIZE).softmax(-1)
    torch.library.opcheck(
        torch.ops.vllm_fork.draw_tokens.default,
        (probs, states, int32(range(ROWS)), torch.zeros(ROWS, dtype=torch.int64)),
    )


def test_wrong_arguments_are_found_while_tracing() -> None:
    with FakeTensorMode():
        seen = torch.zeros(ROWS, 1, dtype=torch.int32)
        slots = torch.zeros(ROWS, dtype=torch.int32)
        with pytest.raises(RuntimeError, match="seen must have 32 words a row for 1000 tokens"):
            fork_kernels.apply_repetition_penalty(
                torch.zeros(ROWS, VOCAB_SIZE), seen, slots, torch.ones(ROWS).double()
            )
