"""vLLM on GPUs without its compiled extensions, as ``VLLM_KERNELS=source`` installs it.

What upstream's Python code wants of them:

* :mod:`.operators` - operators of ``torch.ops._C`` in plain PyTorch.
* :mod:`.schemas` - their signatures, and those of operators that are only refused.
* :mod:`.namespaces` - a sentence for every operator that is not there.
* :mod:`.attention` - says to vLLM which attention backends there are not.
* :mod:`.install` - puts all this into a process.
* ``stand_ins/`` - the files that the installation puts into the places of the extensions.
"""
