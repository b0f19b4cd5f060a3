"""States of torch's CPU generator in the layout of ``csrc/portable/mt19937.h``.

A state is int32 [STATE_WORDS]: the words of MT19937 and, last, how many numbers of double precision
of them are used up, 1 to MAX_POSITION, each two words. ``torch.Generator.get_state`` says the same
in more bytes (ATen, ``CPUGeneratorImpl.cpp``). As 64-bit integers these are 1, in its low half how
many words are left plus 1; 2, how many are used up; 3 to 626, the words.
"""

import torch

NUM_WORDS = 624
STATE_WORDS = NUM_WORDS + 1
MAX_POSITION = NUM_WORDS // 2  # all words are used up

_LEFT, _USED, _WORDS = 1, 2, slice(3, 3 + NUM_WORDS)
_IS_SEEDED = 1 << 32


def read_generator(generator: torch.Generator) -> torch.Tensor:
    """Return the state of a CPU generator, int32 [STATE_WORDS].

    Raises:
        ValueError: Half a number is used up, by 32-bit draws.
    """
    fields = generator.get_state().view(torch.int64)
    left = int(fields[_LEFT]) & 0xFFFFFFFF
    # Also after seeding all words are used up, although the field says that none is.
    used = NUM_WORDS if left == 1 else int(fields[_USED])
    if used % 2:
        raise ValueError("the generator has used up half a number of double precision")
    return torch.cat([fields[_WORDS], fields.new_tensor([used // 2])]).to(torch.int32)


def write_generator(generator: torch.Generator, state: torch.Tensor) -> None:
    """Set the state of a CPU generator.

    Args:
        generator: is changed.
        state: int32 [STATE_WORDS].
    """
    fields = generator.get_state().view(torch.int64)
    used = 2 * int(state[NUM_WORDS])
    fields[_LEFT] = _IS_SEEDED + NUM_WORDS + 1 - used
    fields[_USED] = used
    fields[_WORDS] = state[:NUM_WORDS].to(torch.int64) & 0xFFFFFFFF
    generator.set_state(fields.view(torch.uint8))


def seeded_state(seed: int) -> torch.Tensor:
    """Return the state after ``torch.manual_seed(seed)``, int32 [STATE_WORDS]."""
    return read_generator(torch.Generator().manual_seed(seed))


def random_state() -> torch.Tensor:
    """Return a state that torch's global CPU generator has filled, int32 [STATE_WORDS].

    A seed would be one of 2**32 only, and requests would now and then share one.
    """
    state = torch.empty(STATE_WORDS, dtype=torch.int64).random_(-(2**31), 2**31).to(torch.int32)
    state[NUM_WORDS] = MAX_POSITION
    return state
