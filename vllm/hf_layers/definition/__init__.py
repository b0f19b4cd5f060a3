"""Where vLLM's definition of a model is another function than Transformers', and is mended."""
