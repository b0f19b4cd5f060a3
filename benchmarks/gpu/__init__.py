"""Bits and speed on a GPU machine without network: ``benchmarks/gpu/run.sh``.

* :mod:`.pack` - run before, where there is a network: what such a machine lacks.
* :mod:`.build` - the stage `build`: an environment with this distribution, VLLM_KERNELS=source.
* :mod:`.stages` - the stages `bits` and `bench`: which measurements they consist of.
* :mod:`.measurements` - runs them, each in a process of its own; what was measured is kept.
* :mod:`.report` - the tables.
* :mod:`.digests`, :mod:`.model_bits`, :mod:`.kernels`, :mod:`.engines`, :mod:`.server` - the
  measurements.
* :mod:`.models` - the models that they run.
"""
