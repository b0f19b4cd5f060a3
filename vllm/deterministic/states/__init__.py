"""Layers that keep a state for each request; see ``docs/numerics/states.md``.

A convolution keeps its last inputs, a recurrence the sum of what it has seen. Both are computed
token by token, so that a text has the same bits whole, in chunks, and from a state of the prefix
cache.

* :mod:`.taken` - which layers are taken, and why others are not.
* :mod:`.mamba2`, :mod:`.delta_net`, :mod:`.short_conv` - how each kind computes.
* :mod:`.gated_norm`, :mod:`.convolution` - what they are made of.
* :mod:`.metadata`, :mod:`.cache` - where the states of a step are, and of what shape.
"""
