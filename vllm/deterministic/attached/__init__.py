"""Deterministic mode for models of Transformers: their modules, with the portable kernels.

* :mod:`.model` - replaces the modules of a model, or says which one has no portable form.
* :mod:`.support` - which models are refused before anything is changed.
* :mod:`.linear`, :mod:`.mlp`, :mod:`.norm`, :mod:`.activation`, :mod:`.rotary` - the modules.
* :mod:`.attention`, :mod:`.layout` - attention, and where the tokens of a batch stand.
* :mod:`.training` - refuses to train it, and to load weights.
* :mod:`.rehearsal` - runs a model under the guard.
"""
