"""LoRA adapters with portable bits.

* :mod:`.adapters` - what an adapter adds to a product.
* :mod:`.layers` - puts it into vLLM's layers.
"""
