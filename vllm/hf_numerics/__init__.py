"""The bits of stock Hugging Face models in vLLM's engine (``LLM(..., hf_compat="exact")``).

* :mod:`.loader` - loads the model with Transformers.
* :mod:`.exact_model` - runs it, each request at the shapes that it has alone in `generate()`.
* :mod:`.kv_pages` - its keys and values in vLLM's KV cache.
* :mod:`.engine_args` - what the mode asks of an engine.
"""
