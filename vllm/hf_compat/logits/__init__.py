"""From logits to tokens, in the worker: HF's processors, its draws and its beam search."""
