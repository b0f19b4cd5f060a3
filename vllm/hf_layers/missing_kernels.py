"""What runs a model for whose layers vLLM has no kernel on CPUs: it is said with the error of the
start, which names an operator, a package or a line of vLLM's.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

from vllm.fork.flags.fork_flags import ForkFlags
from vllm.hf_layers.engine.exact_models import could_be_exact
from vllm.hf_layers.inexact_settings import inexact_models
from vllm.platforms import current_platform

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.engine.core import EngineCore


def naming_exact_mode(core_class: type[EngineCore]) -> type[EngineCore]:
    """Decorate ``EngineCore``: an error of its start has a note on what else runs the model, where
    exact mode does (`Exception.add_note`); it stays the same error.
    """
    start: Callable[..., None] = core_class.__init__

    @wraps(start)
    def init(core: EngineCore, vllm_config: VllmConfig, *args: Any, **kwargs: Any) -> None:
        try:
            start(core, vllm_config, *args, **kwargs)
        except Exception as error:
            if (note := note_on(vllm_config)) is not None:
                error.add_note(note)
            raise

    core_class.__init__ = init
    return core_class


def note_on(vllm_config: VllmConfig) -> str | None:
    """Return what else runs the model of an engine that did not start, as a sentence.

    Returns:
        None if nothing else does, or if the model's layers have kernels everywhere: those of dense
        models with keys and values have.
    """
    is_exact = ForkFlags.of(vllm_config).hf_compat == "exact"
    if is_exact or not current_platform.is_cpu() or not could_be_exact(vllm_config):
        return None
    if not inexact_models(vllm_config):
        return None
    return (
        f"vLLM may have no kernel on CPUs for {vllm_config.model_config.architecture}: use "
        'hf_compat="exact", which runs Transformers\' own model.'
    )
