"""Checks that vLLM's definition of a model computes what Transformers' computes.

A *twin* is a model of the same configuration with small sizes and random weights. Both sides load
it from one checkpoint, compute the same texts, and are compared logit by logit.

* :mod:`.check` - what an engine in hf_compat asks before it starts.
* :mod:`.sizes`, :mod:`.layers` - the configuration of a twin.
* :mod:`.weights` - its checkpoint.
* :mod:`.texts` - what it computes.
* :mod:`.transformers_side`, :mod:`.engine_side` - the logits of each side.
* :mod:`.comparison` - whether they agree.
* :mod:`.causes` - the module and the field of a difference.
* :mod:`.process`, :mod:`.kept` - where it runs, and what is known from before.
"""
