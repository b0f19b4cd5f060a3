"""In the place of vLLM's compiled operators; see `vllm.fork.source_kernels`."""

from vllm.fork.source_kernels.install import install

install()
