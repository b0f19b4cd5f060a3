"""Logprobs that depend on their row alone, and without a compiler between.

Why: vLLM asks for as many likeliest tokens as the request of a step that wants most, and PyTorch's
  ``topk`` chooses among equal logprobs, which 16 bits have many of, by how many are asked for:
  other requests would change which tokens are listed. vLLM also compiles the count of a token's
  rank when the first step needs it. On CPUs that takes seconds, for which all requests of the
  engine wait.
Upstream status: Bug in 0.32.0, to be reported (upstream-reports/logprobs-of-others.md).
Exit condition: Upstream lists tokens whatever other requests want, and compiles nothing after its
  start.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

import torch

from vllm.fork_kernels.library import has_kernel
from vllm.fork_kernels.portable.logits import portable_top_k
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


_MOST_TOKENS = 1 << 19  # of `portable_top_k`

_gather_upstream = _uncompiled(Sampler.gather_logprobs)


class OrderedLogprobs(Sampler):
    """A ``Sampler`` whose likeliest tokens have one order, and that waits for no compiler."""

    @staticmethod
    def gather_logprobs(
        logprobs: torch.Tensor, num_logprobs: int, token_ids: torch.Tensor
    ) -> LogprobsTensors:
        """Return the logprobs of given tokens and of the likeliest (``Sampler.gather_logprobs``).

        Args:
            logprobs: float32 [num_tokens, vocab_size].
            num_logprobs: of the likeliest; of equal ones those of lower ids come first.
            token_ids: int64 [num_tokens], the given ones.
        """
        if not (has_kernel("portable_top_k", logprobs.device) and logprobs.shape[1] < _MOST_TOKENS):
            return _gather_upstream(logprobs, num_logprobs, token_ids)
        given_ids = token_ids.unsqueeze(-1)
        given = logprobs.gather(-1, given_ids)
        ids, values = given_ids, given
        if num_logprobs:
            best, best_ids = portable_top_k(logprobs, num_logprobs)
            ids = torch.cat((given_ids, best_ids), dim=1)
            values = torch.cat((given, best), dim=1)
        ranks = (logprobs >= given).sum(-1)
        return LogprobsTensors(ids.to(torch.int32), values, ranks)

    gather_specific_token_logprobs = _uncompiled(Sampler.gather_specific_token_logprobs)
