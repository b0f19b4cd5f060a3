"""Models that compute as Hugging Face's do.

With ``hf_compat=True``, vLLM's own models take Hugging Face's operations, their order and their
roundings:

* :mod:`.layers` - chooses how each layer of a model computes, when it is made.
* :mod:`.linear`, :mod:`.split_linear`, :mod:`.norms`, :mod:`.rotary`, :mod:`.activations`,
  :mod:`.attention` - the layers.
* :mod:`.layer_parity`, :mod:`.parity_settings`, :mod:`.parity_report` - which layers have the bits.

With ``hf_compat="exact"``, the Transformers model itself runs in vLLM's engine:

* :mod:`.loader` - loads it.
* :mod:`.exact_model` - runs it as vLLM's model runner asks.
* :mod:`.alone` - one request, at the shapes that it has in `generate()`.
* :mod:`.grouped_decode` - many requests at once, where :mod:`.self_check` finds the same bits.
* :mod:`.row_linear` - their matrix products.
* :mod:`.adapters` - LoRA, by PEFT.
* :mod:`.executor` - the threads of its process on CPU.
* :mod:`.kv_pages` - keys and values in vLLM's KV cache.

:mod:`.engine_args` has what both ask of an engine; :mod:`.dtype` and :mod:`.float16`, the dtypes.
"""
