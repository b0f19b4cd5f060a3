"""``vllm.renderers`` and ``vllm.v1.engine``: prompts and their parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.fork.requests import text_only
from vllm.fork.requests.text_only import check_conversations, check_modalities
from vllm.fork.requests.token_ids import check_token_ids
from vllm.hf_compat.call.request import child_params
from vllm.hf_compat.frontend import accept_params, frontend_for

if TYPE_CHECKING:
    from vllm.config import VllmConfig

__all__ = [
    "accept_params",
    "check_conversations",
    "check_inputs",
    "check_modalities",
    "child_params",
    "frontend_for",
]


def check_inputs(vllm_config: VllmConfig, *inputs: Any) -> None:
    """Refuse processed inputs that the engine cannot answer, or that a flag promises nothing about.

    Args:
        vllm_config: of the engine.
        inputs: for the encoder, if there is one, and for the decoder.

    Raises:
        VLLMValidationError: see `text_only.check_inputs` and `check_token_ids`.
    """
    text_only.check_inputs(vllm_config, *inputs)
    check_token_ids(vllm_config, *inputs)
