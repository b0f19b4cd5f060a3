"""Hugging Face `generate()` semantics in vLLM's engine (``LLM(..., hf_compat=True)``).

* :mod:`.frontend` - turns a Transformers ``GenerationConfig`` (or a ``SamplingParams``) into the
  request that the engine runs, resolved against the model's own generation configuration.
* :mod:`.call` - what is asked for; :mod:`.server` - the same in the bodies of HTTP.
* :mod:`.rows` - which requests start in a step, where some need several rows of the batch.
* :mod:`.logits` - in the worker: HF's processors on the state of each request, and its draws.
* :mod:`.answers`, :mod:`.texts`, :mod:`.failures` - what comes back.
* :mod:`.grammars` - structured outputs; :mod:`.receipts` - what a receipt has to say of a request.
"""
