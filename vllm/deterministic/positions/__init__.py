"""Where a token stands: rotary embeddings and ALiBi, without a machine's own powers.

* :mod:`.rope` - frequencies; :mod:`.rope_config` - those that a configuration asks for.
* :mod:`.rotary` - the rotation itself.
* :mod:`.alibi` - slopes.
"""
