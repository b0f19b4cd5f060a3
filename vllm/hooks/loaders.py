"""``vllm.model_executor.model_loader``: the formats of loading that the fork adds."""

from vllm.hf_layers.engine.engine_args import LOAD_FORMAT
from vllm.hf_model.loader import ExactLoader
from vllm.receipts import engine_args as receipts
from vllm.receipts.loader import DigestingLoader

__all__ = ["LOADERS"]

LOADERS = {LOAD_FORMAT: ExactLoader, receipts.LOAD_FORMAT: DigestingLoader}
"""The loader of each format."""
