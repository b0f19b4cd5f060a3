"""The Transformers model itself in vLLM's engine (``LLM(..., hf_compat="exact")``).

* :mod:`.loader` - loads it.
* :mod:`.model` - runs it as vLLM's model runner asks.
* :mod:`.alone` - one request, at the shapes that it has in `generate()`.
* :mod:`.grouped_decode` - many requests at once, where :mod:`.self_check` finds the same bits.
* :mod:`.adapters` - LoRA, by PEFT.
* :mod:`.kv_pages` - keys and values in vLLM's KV cache.
"""
