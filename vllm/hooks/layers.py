"""``vllm.model_executor.model_loader``: how the layers of a new model compute, chosen once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from vllm.fork.flags.fork_flags import ForkFlags
from vllm.fork.startup.checkpoint_files import use_hf_files
from vllm.fork.startup.triton_allocator import accept_allocators
from vllm.hf_layers.definition.formulas import use_hf_formulas
from vllm.hf_layers.replacement import use_hf_layers
from vllm.hf_layers.report.report import check_layers

if TYPE_CHECKING:
    from vllm.config import VllmConfig

accept_allocators()  # every process that makes a model imports this module before


def prepare_layers(model: nn.Module, vllm_config: VllmConfig) -> None:
    """Make the layers of `model`, which is not loaded yet, compute what the flags ask for.

    Models that hold other models come here several times; what is prepared stays as it is.

    Raises:
        ValueError: a layer cannot compute it; see `split_projections`, `use_portable_layers` and
            `check_layers`.
    """
    flags = ForkFlags.of(vllm_config)
    if flags.has_hf_definition:
        use_hf_files(model, vllm_config)
        use_hf_formulas(model, vllm_config)
    if flags.is_portable:
        # Not before a model is made: models import what imports this module.
        from vllm.deterministic.layers import use_portable_layers

        use_portable_layers(model, vllm_config)
    else:
        use_hf_layers(model, vllm_config)
    check_layers(model, vllm_config)
