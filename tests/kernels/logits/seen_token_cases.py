"""What the tests of the ops on seen tokens share: inputs, Hugging Face's answer, comparison."""

from collections.abc import Iterable

import numpy as np
import torch
from transformers import RepetitionPenaltyLogitsProcessor

from tests.kernels.logits import reference
from vllm import fork_kernels

VOCABULARIES = (1, 31, 32, 33, 4096, 49953, 128256)
PENALTIES = (0.5, 1.0, 1.05, 1.1, 1.2, 1.3, 2.0, 10.0)

# What the CPU has, best first: one that has the first has those behind it.
ALL_ISAS = ("amx", "avx512vnni", "avx512", "avx2", "scalar")


def best_isa() -> str:
    """What PyTorch says of the CPU, in the names of VLLM_FORK_CPU_ISA."""
    capability = torch.backends.cpu.get_cpu_capability()
    if capability == "AVX512" and torch.cpu._is_vnni_supported():
        return "amx" if torch.cpu._is_amx_tile_supported() else "avx512vnni"
    return {"AVX512": "avx512", "AVX2": "avx2"}.get(capability, "scalar")


BEST_ISA = best_isa()
ISA_VARIABLE = "VLLM_FORK_CPU_ISA"

DEVICES = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)

# Bit patterns, so that payloads and signs are what they seem.
SPECIAL_BITS = (
    0x00000000,  # +0
    0x80000000,  # -0
    0x7F800000,  # +inf
    0xFF800000,  # -inf
    0x7FC00000,  # NaN
    0xFFC01234,  # a negative NaN with a payload
    0x00000001,  # smallest subnormal
    0x80000001,
    0x007FFFFF,  # largest subnormal
    0x807FFFFF,
    0x00800000,  # smallest normal: a division makes it subnormal
    0x80800000,
    0x7F7FFFFF,  # largest finite: a penalty below 1 makes it infinite
    0xFF7FFFFF,
    0x3F800000,  # 1
    0xBF800000,
)


def adversarial_logits(rows: int, vocab_size: int, seed: int = 0) -> torch.Tensor:
    """float32 [rows, vocab_size]: a shuffle of special values, ties, bf16 and ordinary numbers."""
    generator = torch.Generator().manual_seed(seed)
    special = torch.from_numpy(np.array(SPECIAL_BITS, dtype=np.uint32).view(np.float32))
    ordinary = torch.randn(512, generator=generator) * 10
    rounded = ordinary.bfloat16().float()
    pool = torch.cat([special, special, ordinary, rounded, torch.full((16,), -1.625)])
    return pool[torch.randint(len(pool), (rows, vocab_size), generator=generator)]


def random_tokens(rows: int, length: int, vocab_size: int, seed: int = 1) -> torch.Tensor:
    """int64 [rows, length], with the first and the last token of the vocabulary, and repeats."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(vocab_size, (rows, length), generator=generator)
    tokens[:, 0] = 0
    tokens[:, -1] = vocab_size - 1
    return tokens


def seen_of(token_ids: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """The mask of ``token_ids`` [rows, length], a slot for each row, computed with numpy."""
    rows = token_ids.shape[0]
    words = fork_kernels.num_mask_words(vocab_size)
    bits = np.zeros((rows, words * 32), dtype=np.uint8)
    np.put_along_axis(bits, token_ids.cpu().numpy(), 1, axis=1)
    packed = np.packbits(bits, axis=1, bitorder="little").view("<i4")
    return torch.from_numpy(packed.copy()).to(token_ids.device)


def hugging_face(logits: torch.Tensor, token_ids: torch.Tensor, penalty: float) -> torch.Tensor:
    """What transformers computes on the device of ``logits``; a new tensor."""
    processor = RepetitionPenaltyLogitsProcessor(penalty)
    scores: torch.Tensor = processor(token_ids, logits)
    return scores


def by_hand(logits: torch.Tensor, penalty: float, rule: fork_kernels.DivisionRule) -> torch.Tensor:
    """Every logit penalized with numpy's float32, which neither fuses nor flushes."""
    x = logits.numpy()
    p = np.float32(penalty)
    with np.errstate(all="ignore"):
        by_reciprocal = rule is fork_kernels.DivisionRule.RECIPROCAL
        divided = x * np.float32(1 / penalty) if by_reciprocal else x / p
        return torch.from_numpy(np.where(x < 0, x * p, divided))


def assert_same_bits(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal bit by bit; of a NaN only that it is one."""
    assert actual.shape == expected.shape
    is_nan = expected.isnan()
    assert torch.equal(actual.isnan(), is_nan)
    differ = (actual.view(torch.int32) != expected.view(torch.int32)) & ~is_nan
    assert not differ.any(), (
        f"{int(differ.sum())} of {differ.numel()} logits differ, the first: "
        f"{actual[differ][0].item()!r} for {expected[differ][0].item()!r}"
    )


class Torch:
    """The torch implementations behind the signatures of the public functions."""

    draw_tokens = staticmethod(reference.draw_tokens)
    mark_seen_tokens = staticmethod(reference.mark_seen_tokens)

    @staticmethod
    def apply_repetition_penalty(
        logits: torch.Tensor,
        seen: torch.Tensor,
        slots: torch.Tensor,
        penalties: torch.Tensor,
        rule: fork_kernels.DivisionRule | None = None,
    ) -> None:
        rule = rule or fork_kernels.hf_division_rule(logits.device)
        reference.apply_repetition_penalty(
            logits, seen, slots, penalties, rule is fork_kernels.DivisionRule.RECIPROCAL
        )


IMPLEMENTATIONS = {"compiled": fork_kernels, "torch": Torch}


def int32(values: Iterable[int], device: str = "cpu") -> torch.Tensor:
    """A vector of int32, as ``slots`` are."""
    return torch.tensor(list(values), dtype=torch.int32, device=device)
