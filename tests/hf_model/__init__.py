"""The Transformers model in vLLM's engine."""
