"""Hugging Face `generate()` semantics in vLLM's engine (``LLM(..., hf_compat=True)``).

The way of a request: `frontend` turns a Transformers ``GenerationConfig`` (or a
``SamplingParams``) into the request that the engine runs, resolved against the model's own
generation configuration as `generate()` resolves it; in the worker, `sampler` sends the logits
through the `pipeline` of HF's processors, on the state that `batch` keeps for each request, and
`draws` takes HF's random numbers. `openai` gives the server's bodies the fields that `body` lists.
"""
