"""Several rows of a batch for one request: which requests start, and their KV blocks."""
