"""Bits and speed on a GPU machine without network: ``benchmarks/gpu/run.sh``.

* :mod:`.pack` - before, on a machine with a network: the one archive that such a machine needs.
* :mod:`.probes`, :mod:`.bits`, :mod:`.model_bits`, :mod:`.generate`, :mod:`.exact_bits` - whether
  the GPU has the bits that it must have.
* :mod:`.times`, :mod:`.engines` - how fast it is.
* :mod:`.summary` - the table, and what to do next.
"""
