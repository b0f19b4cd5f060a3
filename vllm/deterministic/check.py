"""What is checked before an engine in deterministic mode answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from vllm.deterministic.fusion import fused_products
from vllm.deterministic.guard import only_exact_operations_of
from vllm.deterministic.lora.layers import use_portable_adapters
from vllm.deterministic.self_check import check_machine
from vllm.forward_context import set_forward_context
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

if TYPE_CHECKING:
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

_NUM_TOKENS = 3

_OPERATORS = (
    "vllm::unified_attention_with_output",
    "vllm::unified_kv_cache_update",
    "vllm::all_gather",
    "_C::shm_gather",
    "_C::shm_all_gather",
    "c10d::gather_",
    "c10d::_allgather_base_",
)
"""They call the layers' own attention, or copy.

Of copies between ranks: on a GPU, on a CPU with AVX-512, and on one without, where vLLM's compiled
operators leave them to PyTorch.
"""

_OPERATORS_IN: dict[type[nn.Module], tuple[str, ...]] = {
    # All ranks but one add zeros.
    VocabParallelEmbedding: ("vllm::all_reduce", "_C::shm_allreduce", "c10d::allreduce_"),
}


def check_portable_runner(runner: GPUModelRunner) -> None:
    """Check the device's bits and the operations of a model whose layers are portable.

    The layers that vLLM has wrapped for adapters get portable bits here, before they compute.

    Raises:
        ValueError: see `use_portable_adapters`.
        RuntimeError: see `check_machine`, or the model calls an operation whose bits are not
            specified; the sentence names it.
    """
    check_machine(runner.device)
    use_portable_adapters(runner.get_model())
    _check_operations(runner)


@torch.no_grad()
def _check_operations(runner: GPUModelRunner) -> None:
    """Compute the logits of some tokens, which are no request's; fuse products from then on."""
    model = runner.get_model()
    ids = torch.arange(_NUM_TOKENS, device=runner.device)
    with (
        set_forward_context(None, runner.vllm_config, num_tokens=_NUM_TOKENS),
        fused_products(runner.device),
        only_exact_operations_of(model, _OPERATORS, _OPERATORS_IN),
    ):
        model.compute_logits(model(input_ids=ids, positions=ids))
