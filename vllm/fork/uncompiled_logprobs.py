"""Logprobs without a compiler between: the first request that asks for any must not wait for one.

vLLM compiles the count of a token's rank when the first step needs it. On CPUs that takes seconds,
for which all requests of the engine wait; the count itself is a small part of a step.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

import torch

from vllm.platforms import current_platform
from vllm.v1.outputs import LogprobsTensors
from vllm.v1.sample.sampler import Sampler


def _uncompiled(gather: Callable[..., LogprobsTensors]) -> Callable[..., LogprobsTensors]:
    """Return `gather`, which runs as it is written on CPUs; numbers are the same."""

    @wraps(gather)
    def gather_uncompiled(*args: object, **kwargs: object) -> LogprobsTensors:
        if not current_platform.is_cpu():
            return gather(*args, **kwargs)
        with torch.compiler.set_stance("force_eager"):
            return gather(*args, **kwargs)

    return gather_uncompiled


class UncompiledLogprobs(Sampler):
    """A ``Sampler`` that waits for no compiler."""

    gather_logprobs = staticmethod(_uncompiled(Sampler.gather_logprobs))
    gather_specific_token_logprobs = _uncompiled(Sampler.gather_specific_token_logprobs)
