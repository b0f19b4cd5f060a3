"""vLLM's own models with Hugging Face's operations, in its order and with its roundings.

It is what ``hf_compat=True`` makes of the layers of a model; ``hf_compat="exact"``, which runs the
Transformers model itself, is in :mod:`vllm.hf_model`.

* :mod:`.layers` - chooses how each layer of a model computes, when it is made.
* :mod:`.linear`, :mod:`.split_linear`, :mod:`.norms`, :mod:`.rotary`, :mod:`.activations`,
  :mod:`.attention`, :mod:`.experts` - the layers.
* :mod:`.single_row_products`, :mod:`.single_row_experts`, :mod:`.paged_attention` - the products,
  the experts and the attention of many requests, each at the shapes that it has in `generate()`.
* :mod:`.engine_args` - what this, and the exact form, ask of an engine; :mod:`.dtype` and
  :mod:`.float16`, the dtypes; :mod:`.executor`, the threads of its process on CPU.
"""
