"""The bits of stock Hugging Face models in vLLM's engine (``LLM(..., hf_compat="exact")``).

* :mod:`.loader` - loads the model with Transformers.
* :mod:`.exact_model` - runs it as vLLM's model runner asks.
* :mod:`.alone` - one request, at the shapes that it has in `generate()`.
* :mod:`.grouped_decode` - many requests at once, where :mod:`.self_check` finds the same bits.
* :mod:`.row_linear` - their matrix products.
* :mod:`.kv_pages` - its keys and values in vLLM's KV cache.
* :mod:`.engine_args` - what the mode asks of an engine.
"""
