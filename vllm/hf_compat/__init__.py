"""Hugging Face `generate()` semantics in vLLM's engine (``LLM(..., hf_compat=True)``).

The way of a request: `frontend` turns a Transformers ``GenerationConfig`` (or a
``SamplingParams``) into the request that the engine runs, resolved against the model's own
generation configuration as `generate()` resolves it; `sampler` applies HF's arithmetic to the
logits in the worker, on the state that `seen_tokens` keeps for each request.
"""
