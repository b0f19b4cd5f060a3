"""vLLM's own models with Hugging Face's operations, in its order and with its roundings.

It is what ``hf_compat=True`` makes of the layers of a model; ``hf_compat="exact"``, which runs the
Transformers model itself, is in :mod:`vllm.hf_model`.

* :mod:`.replacement` - chooses how each layer of a model computes, when it is made.
* :mod:`.layers`, :mod:`.attention` - the layers.
* :mod:`.products` - matrix products of many requests, each at the shapes that it has in
  `generate()`; :mod:`.step_rows` says where requests are in the rows of a step.
* :mod:`.decoder` - all decoder layers of a step as one operator.
* :mod:`.definition` - where vLLM's definition of a model is another function than Transformers'.
* :mod:`.engine` - what this, and the exact form, ask of an engine.
* :mod:`.strict` - settings that cost bits; :mod:`.report` - which layers have Hugging Face's.
"""
