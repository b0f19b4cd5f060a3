"""Weights that change in a running engine: after an update it answers as a fresh engine would.

Layers keep what was made of their weights: packed integers, kernels' own layouts, parts of fused
matrices. Whatever way an update comes (``load_weights`` of the model, ``reload_weights``, a weight
transfer engine), it calls the loaders of parameters, and those are the one entry here.

* :mod:`.packed` - what a layer has to say about the weights that it packs.
* :mod:`.upstream_layers` - the same for upstream's layers on CPUs.
* :mod:`.writes` - which elements of a parameter a loader has written.
* :mod:`.staging` - memory for a parameter that was packed, until a part of it is there.
* :mod:`.rehearsal` - tries names and shapes of an update before anything is written.
* :mod:`.model` - the weights of one model: loaders, packing, and whether an update is whole.
* :mod:`.registry` - which models have such weights.
* :mod:`.install` - which engines let their weights change.
* :mod:`.engine` - what the engine does about it: caches are dropped, requests refused.
"""
