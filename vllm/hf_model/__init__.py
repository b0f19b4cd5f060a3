"""The Transformers model itself in vLLM's engine (``LLM(..., hf_compat="exact")``).

* :mod:`.loader` - loads it.
* :mod:`.model` - runs it as vLLM's model runner asks.
* :mod:`.alone` - one request, at the shapes that it has in `generate()`.
* :mod:`.grouped_decode`, :mod:`.grouped_prompts` - many requests at once, where :mod:`.self_check`
  finds the same bits, and :mod:`.operations` nothing that might have others.
* :mod:`.stand_ins` - layers that keep to each request's shapes, and :mod:`.row_linear` products.
* :mod:`.adapters` - LoRA, by PEFT.
* :mod:`.kv_pages` - keys and values in vLLM's KV cache.
"""
