"""A way to send weights to a running engine that needs no GPU: the backend ``"gloo"``."""

from vllm.fork.weight_transfer.client import RefusedError, WeightSyncClient
from vllm.fork.weight_transfer.registry import register_gloo
from vllm.fork.weight_transfer.trainer import GlooTrainer, GlooTrainerInitInfo

__all__ = ["GlooTrainer", "GlooTrainerInitInfo", "RefusedError", "WeightSyncClient"]

register_gloo()
