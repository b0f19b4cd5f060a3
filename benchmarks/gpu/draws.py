"""hf_compat's draws and repetition penalty beside what Transformers gets of PyTorch on a device.

A request's draws must be its row of what ``torch.multinomial`` draws for Hugging Face's batch after
``torch.manual_seed``; the penalty must have the bits of Transformers' own processor.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from transformers import RepetitionPenaltyLogitsProcessor

from vllm import fork_kernels
from vllm.hf_compat.logits.cpu_draws import draw_on_cpu
from vllm.hf_compat.logits.draws import DrawSource
from vllm.hf_compat.logits.generator_draws import draw_with_generators

STEPS = 8
SEEDS = (0, 7, 2**31 + 5)
ROWS = (1, 4, 33)
VOCABULARIES = (301, 32_000, 128_256)
PENALTIES = (1.1, 1.2, 1.05, 0.7, 2.0, 1.0)

Found = Iterator[tuple[str, torch.Tensor, torch.Tensor]]


def draws(device: torch.device) -> Found:
    """Yield tokens [steps, rows]: those of requests, and those of PyTorch's one call a step."""
    draw = draw_on_cpu if device.type == "cpu" else draw_with_generators
    for vocabulary in VOCABULARIES:
        for rows in ROWS:
            shape = (STEPS, rows, vocabulary)
            logits = torch.randn(shape, generator=torch.Generator().manual_seed(rows))
            probs = (3 * logits).to(device).softmax(-1)
            for seed in SEEDS:
                torch.manual_seed(seed)
                expected = torch.stack([torch.multinomial(step, 1)[:, 0] for step in probs])
                source = DrawSource(vocabulary, device)
                own = [source.draws(seed, rows, row, 0) for row in range(rows)]
                found = torch.stack([draw(step, own) for step in probs])
                yield f"draws, seed {seed}, {rows} x {vocabulary}", found, expected


def penalties(device: torch.device) -> Found:
    """Yield logits: by the fork's operator, and by Transformers' processor."""
    for vocabulary in VOCABULARIES:
        for penalty in PENALTIES:
            generator = torch.Generator().manual_seed(vocabulary)
            logits = 8 * torch.randn(6, vocabulary, generator=generator)
            logits[:, ::7] = 0.0
            tokens = torch.randint(vocabulary, (6, 200), generator=generator)
            logits, tokens = logits.to(device), tokens.to(device)
            expected = RepetitionPenaltyLogitsProcessor(penalty)(tokens, logits.clone())
            slots = torch.arange(6, dtype=torch.int32, device=device)
            words = fork_kernels.num_mask_words(vocabulary)
            seen = torch.zeros(6, words, dtype=torch.int32, device=device)
            fork_kernels.mark_seen_tokens(seen, slots.repeat_interleave(200), tokens.flatten())
            factors = torch.full((6,), penalty, dtype=torch.float64, device=device)
            fork_kernels.apply_repetition_penalty(logits, seen, slots, factors)
            yield f"penalty {penalty}, {vocabulary}", logits, expected
