"""``vllm.renderers`` and ``vllm.v1.engine.input_processor``: prompts and their parameters."""

from vllm.fork.text_only import check_conversations, check_inputs, check_modalities
from vllm.hf_compat.frontend import accept_params, frontend_for

__all__ = [
    "accept_params",
    "check_conversations",
    "check_inputs",
    "check_modalities",
    "frontend_for",
]
