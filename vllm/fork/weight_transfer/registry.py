"""The name ``"gloo"`` among vLLM's weight transfer engines; nothing is loaded before it is used."""

from __future__ import annotations

from vllm.distributed.weight_transfer import (
    WeightTransferEngineFactory,
    WeightTransferTrainerFactory,
)

BACKEND = "gloo"


def register_gloo() -> None:
    """Let vLLM's factories make both sides of the backend; once more is the same."""
    if BACKEND in WeightTransferEngineFactory._registry:
        return
    package = "vllm.fork.weight_transfer"
    WeightTransferEngineFactory.register_engine(BACKEND, f"{package}.engine", "GlooEngine")
    WeightTransferTrainerFactory.register_engine(BACKEND, f"{package}.trainer", "GlooTrainer")
