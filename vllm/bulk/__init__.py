"""``vllm bulk``: a file of requests is answered to its end, whatever happens on the way."""
