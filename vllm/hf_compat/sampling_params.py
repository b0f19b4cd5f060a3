"""vLLM's ``SamplingParams`` in HF's terms.

=================== ======================== ============================================
SamplingParams      GenerationConfig         remark
=================== ======================== ============================================
temperature         do_sample, temperature   below 1e-5: greedy search
top_k               top_k                    0 and -1: off
top_p               top_p
min_p               min_p                    0: off
repetition_penalty  repetition_penalty
seed                ``torch.manual_seed``
max_tokens          max_new_tokens
n                   num_return_sequences     1, or greedy
stop_token_ids      besides eos_token_id
=================== ======================== ============================================

Everything else of ``SamplingParams`` (presence and frequency penalty, logit bias, ``min_tokens``,
allowed tokens, structured output) has no counterpart in HF and acts before HF's processors.
"""

from __future__ import annotations

import copy

from transformers import GenerationConfig

from vllm.hf_compat.generation_config import merge_generation_config
from vllm.sampling_params import SamplingParams

SAMPLING_EPS = 1e-5
"""vLLM's own bound below which a temperature means greedy search."""


def from_sampling_params(params: SamplingParams, of_model: GenerationConfig) -> GenerationConfig:
    """Return what `params` ask for in HF's terms.

    What ``SamplingParams`` cannot say (``suppress_tokens``, ...) comes from the model, as it does
    in `generate()`; what they can say is theirs alone.
    """
    given = copy.deepcopy(of_model)
    given.do_sample = params.temperature >= SAMPLING_EPS
    given.temperature = params.temperature if given.do_sample else None
    given.top_k = max(params.top_k, 0)
    given.top_p = params.top_p
    given.min_p = params.min_p or None
    given.repetition_penalty = params.repetition_penalty
    return merge_generation_config(given, of_model)


def turn_off_processors(params: SamplingParams) -> None:
    """Leave the choice of a token to HF's rules: vLLM's engine sees a greedy request."""
    params.temperature = 0.0
    params.top_k = 0
    params.top_p = 1.0
    params.min_p = 0.0
    params.repetition_penalty = 1.0
    params.seed = None
