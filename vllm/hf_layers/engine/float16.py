"""float16 for models for which vLLM refuses it: Transformers computes them, and so does hf_compat.

vLLM has a list of architectures, Gemma 2 and 3 among them, whose numbers can be too large for
float16 (``vllm.config.model._FLOAT16_NOT_SUPPORTED_MODELS``). With hf_compat they give what
``generate()`` gives, be it infinite.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from functools import wraps
from typing import TYPE_CHECKING

from vllm.fork.flags.fork_flags import ForkFlags
from vllm.logger import init_logger

if TYPE_CHECKING:
    from vllm.config import ModelConfig
    from vllm.engine.arg_utils import EngineArgs

logger = init_logger(__name__)

_is_as_hf: ContextVar[bool] = ContextVar("is_as_hf", default=False)


def with_hf_float16(create: Callable[[EngineArgs], ModelConfig]) -> Callable[..., ModelConfig]:
    """Decorate ``EngineArgs.create_model_config``: `allows_float16` follows the arguments' flags.

    Not with ``deterministic=True``, whose layers are not Hugging Face's.
    """

    @wraps(create)
    def create_as_hf(args: EngineArgs) -> ModelConfig:
        flags = ForkFlags.from_engine_args(args)
        token = _is_as_hf.set(flags.has_hf_layers and not flags.is_portable)
        try:
            return create(args)
        finally:
            _is_as_hf.reset(token)

    return create_as_hf


def allows_float16(model_type: str, reason: str) -> bool:
    """Return whether the configuration that is being made may have float16; say so if it may.

    Args:
        model_type: of the model.
        reason: why vLLM refuses it, a sentence or two.
    """
    if not _is_as_hf.get():
        return False
    logger.warning(
        "hf_compat: %s is computed in float16 as Transformers does it, which vLLM itself refuses: "
        "%s",
        model_type,
        reason,
    )
    return True
