"""The fork's compiled operators.

Importing this package loads the library and needs torch only, none of the engine; without the
library it is an ImportError that says what to do.

* :mod:`.logits` - seen tokens and the repetition penalty on them, and draws on CPU with a generator
  for each request; their states.
* :mod:`.torch_order` - attention, products, norms and rotary embeddings with PyTorch's bits on CPU,
  for many requests at once.
* :mod:`.portable` - operations whose bits are specified, in docs/numerics, and the same on every
  machine.
* :mod:`.dependent_launches` - whether kernels of a GPU begin while the one before still runs.
* :mod:`.operators` - what Python knows of each operator: its fake, and whether its bits are
  specified.
* :mod:`.library` - finds and loads the compiled library.
"""

from vllm.fork_kernels.logits.mt19937 import random_state, seeded_state
from vllm.fork_kernels.logits.multinomial import draw_tokens
from vllm.fork_kernels.logits.seen_tokens import (
    DivisionRule,
    apply_repetition_penalty,
    hf_division_rule,
    mark_seen_tokens,
    num_mask_words,
)
from vllm.fork_kernels.torch_order.paged_sdpa import has_paged_sdpa, has_token_attention, paged_sdpa
from vllm.fork_kernels.torch_order.prompt_sdpa import has_prompt_order, prompt_sdpa
from vllm.fork_kernels.torch_order.rounded_layers import (
    append_to_pages,
    has_rounded_layers,
    rms_norm_rounded,
    rotate_rounded,
    silu_and_mul_rounded,
)
from vllm.fork_kernels.torch_order.row_products import row_orders, row_products

__all__ = [
    "DivisionRule",
    "append_to_pages",
    "apply_repetition_penalty",
    "draw_tokens",
    "has_paged_sdpa",
    "has_prompt_order",
    "has_rounded_layers",
    "has_token_attention",
    "hf_division_rule",
    "mark_seen_tokens",
    "num_mask_words",
    "paged_sdpa",
    "prompt_sdpa",
    "random_state",
    "rms_norm_rounded",
    "rotate_rounded",
    "row_orders",
    "row_products",
    "seeded_state",
    "silu_and_mul_rounded",
]
