"""The fork's compiled operators, and their torch implementations where no library is built.

Importing this package loads the library and needs torch only, none of the engine.

* :mod:`.seen_tokens` - the tokens that a request has seen, and the repetition penalty on them.
* :mod:`.multinomial` - sampling on CPU with a generator for each request.
* :mod:`.row_products` - products of single rows with a weight on CPU.
* :mod:`.mt19937` - the states of these generators.
* :mod:`.library` - where the compiled library is found.
* :mod:`.reference` - the same operators in plain torch.
"""

from .mt19937 import random_state, seeded_state
from .multinomial import draw_tokens
from .row_products import linear_by_row
from .seen_tokens import (
    DivisionRule,
    apply_repetition_penalty,
    hf_division_rule,
    mark_seen_tokens,
    num_mask_words,
)

__all__ = [
    "DivisionRule",
    "apply_repetition_penalty",
    "draw_tokens",
    "hf_division_rule",
    "linear_by_row",
    "mark_seen_tokens",
    "num_mask_words",
    "random_state",
    "seeded_state",
]
