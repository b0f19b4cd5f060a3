"""A GPU that the CPU stands in for: torch tensors of a CUDA device, and the fork's CUDA ops.

Models and samplers run on it as they are. Their tensors are on the CPU in truth; the fork's ops are
the CUDA kernels themselves, emulated thread by thread (see csrc/emulation), behind the bindings
that a GPU's tensors come to.
"""
