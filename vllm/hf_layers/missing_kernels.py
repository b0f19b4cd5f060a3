"""What runs a model for whose layers vLLM has no kernel on CPUs: it is said with the error of the
start or of the first step, which names an operator, a package or a line of vLLM's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

from vllm.fork.flags.fork_flags import ForkFlags
from vllm.hf_layers.engine.exact_models import exact_remedy
from vllm.hf_layers.inexact_settings import inexact_models
from vllm.platforms import current_platform

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.engine.core import EngineCore

_T = TypeVar("_T")


def naming_exact_mode(core_class: type[EngineCore]) -> type[EngineCore]:
    """Decorate ``EngineCore``: an error of its start or of a step has a note on what else runs the
    model, where exact mode does (`Exception.add_note`); it stays the same error.
    """
    start: Callable[..., None] = core_class.__init__

    @wraps(start)
    def init(core: EngineCore, vllm_config: VllmConfig, *args: Any, **kwargs: Any) -> None:
        with _noting(vllm_config):
            start(core, vllm_config, *args, **kwargs)

    core_class.__init__ = init
    for name in ("step", "step_with_batch_queue"):
        setattr(core_class, name, _naming(getattr(core_class, name)))
    return core_class


def _naming(step: Callable[[EngineCore], _T]) -> Callable[[EngineCore], _T]:
    @wraps(step)
    def with_note(core: EngineCore) -> _T:
        with _noting(core.vllm_config):
            return step(core)

    return with_note


@contextmanager
def _noting(vllm_config: VllmConfig) -> Iterator[None]:
    try:
        yield
    except ValueError:  # says itself what to do
        raise
    except Exception as error:
        if (note := note_on(vllm_config)) is not None:
            error.add_note(note)
        raise


def note_on(vllm_config: VllmConfig) -> str | None:
    """Return what else runs the model of an engine that ended in an error, as a sentence.

    Returns:
        None if nothing else does, or if the model's layers have kernels everywhere: those of dense
        models with keys and values have.
    """
    is_exact = ForkFlags.of(vllm_config).hf_compat == "exact"
    if is_exact or not current_platform.is_cpu() or not inexact_models(vllm_config):
        return None
    if (remedy := exact_remedy(vllm_config)) is None:
        return None
    return (
        f"Use {remedy}, which runs Transformers' own {vllm_config.model_config.architecture} where "
        "vLLM's layers do not run."
    )
