"""``vllm.v1.worker.gpu_model_runner``: what a worker samples with, and answers beside tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm.deterministic.sampler import PortableSampler
from vllm.fork.flags.fork_flags import ForkFlags
from vllm.fork.speculation import DraftChecker
from vllm.hf_compat.logits.sampler import HFSampler, hf_sampler, take_outputs
from vllm.v1.sample.rejection_sampler import RejectionSampler
from vllm.v1.sample.sampler import Sampler

if TYPE_CHECKING:
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

__all__ = ["rejection_sampler_for", "sampler_for", "take_outputs"]


def sampler_for(runner: GPUModelRunner, upstream: Sampler) -> Sampler:
    """Return the sampler that `runner` uses: `upstream` without flags."""
    flags = ForkFlags.of(runner.vllm_config)
    if flags.hf_compat:
        return hf_sampler(runner, upstream)
    return PortableSampler(runner, upstream) if flags.is_portable else upstream


def rejection_sampler_for(
    runner: GPUModelRunner, upstream: RejectionSampler
) -> RejectionSampler | DraftChecker:
    """Return what judges drafts: `upstream`, or a `DraftChecker` for the fork's samplers."""
    sampler = runner.sampler
    if isinstance(sampler, HFSampler | PortableSampler):
        return DraftChecker(runner, sampler)
    return upstream
