"""Random draws: the tokens that HF samples for a seed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from vllm.logger import init_logger

if TYPE_CHECKING:
    from vllm.hf_compat.batch import Rows

logger = init_logger(__name__)


def draw_tokens(rows: Rows, scores: torch.Tensor) -> torch.Tensor:
    """Draw the next token of each row as ``GenerationMixin._sample`` does.

    A row with a seed draws from its own generator what HF draws from the global one after
    ``torch.manual_seed(seed)``, with the same call; rows whose token is thrown away draw nothing.
    Where HF fails, because no token has a probability (NaN, or all of them forbidden), the request
    is ended by its first end-of-sequence id, and an error is logged.

    Args:
        rows: the requests.
        scores: float32 [num_rows, vocab_size], processed.

    Returns:
        int64 [num_rows].
    """
    probs = torch.nn.functional.softmax(scores, dim=-1)
    tokens = torch.zeros(len(scores), dtype=torch.int64, device=scores.device)
    unseeded: list[int] = []
    possible = probs.sum(dim=-1).isfinite().tolist()
    for i, state in enumerate(rows.states):
        if rows.discarded[i]:
            continue
        if not possible[i]:
            logger.error("hf_compat: no token has a probability, where generate() fails; ended")
            tokens[i] = next(iter(state.request.eos_token_ids), 0)
        elif state.generator is None:
            unseeded.append(i)
        else:
            tokens[i : i + 1] = torch.multinomial(probs[i : i + 1], 1, generator=state.generator)[0]
    if unseeded:
        tokens[unseeded] = torch.multinomial(probs[unseeded], 1).squeeze(1)
    return tokens


def make_generator(
    seed: int | None, num_drawn: int, vocab_size: int, device: torch.device
) -> torch.Generator | None:
    """Return a generator in the state that HF's has after `num_drawn` tokens; None without a seed.

    ``torch.multinomial`` with one sample takes one exponential number for each token of the
    vocabulary, whatever their probabilities.
    """
    if seed is None:
        return None
    generator = torch.Generator(device).manual_seed(seed)
    uniform = torch.full((1, vocab_size), 1 / vocab_size, device=device)
    for _ in range(num_drawn):
        torch.multinomial(uniform, 1, generator=generator)
    return generator
