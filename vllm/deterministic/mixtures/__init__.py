"""Mixtures of experts: routing, experts and shared experts, with portable bits.

* :mod:`.routing` - which experts a token goes to.
* :mod:`.experts` - what they compute; :mod:`.shared_experts` - those that every token goes to.
* :mod:`.method` - puts all of it into vLLM's layers.
"""
