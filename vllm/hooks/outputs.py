"""``vllm.v1.engine.output_processor`` and ``async_llm``: answers, and what failed."""

from vllm.hf_compat.answers import collect, detokenizer_for, with_beams, with_tensors
from vllm.hf_compat.failures import failure_of

__all__ = ["collect", "detokenizer_for", "failure_of", "with_beams", "with_tensors"]
