"""In the place of FlashAttention's kernels, without which upstream's modules are not imported.

Nothing is defined here: each operator is refused by name, see `vllm.fork.source_kernels`.
"""
