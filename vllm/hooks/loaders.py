"""``vllm.model_executor.model_loader``: the formats of loading that the fork adds."""

from vllm.hf_exact.loader import ExactLoader
from vllm.hf_numerics.engine_args import LOAD_FORMAT

__all__ = ["LOADERS"]

LOADERS = {LOAD_FORMAT: ExactLoader}
"""The loader of each format."""
