"""``vllm.v1.worker.lora_model_runner_mixin``: who manages a model's adapters."""

from vllm.hf_model.adapters import exact_adapters

__all__ = ["exact_adapters"]
