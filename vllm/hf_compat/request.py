"""What a request carries from the process that accepts it to the worker that runs it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from vllm.sampling_params import SamplingParams

EXTRA_ARGS_KEY = "hf_compat"
"""Key in ``SamplingParams.extra_args``, which vLLM carries to the workers untouched."""


@dataclass(frozen=True)
class HFRequest:
    """HF's semantics for one request, in types that vLLM's message transport accepts.

    Attributes:
        fields: the fields of the merged ``GenerationConfig`` that change what a step does with
            its logits; empty for plain greedy search.
        eos_token_ids: HF's ``eos_token_id`` as a list, which several processors look at.
        prompt_len: number of prompt tokens, padding and embeddings included.
        max_length: prompt and new tokens together, at most.
        seed: of ``torch.manual_seed``; None draws from the worker's default generator.
    """

    fields: dict[str, Any] = field(default_factory=dict)
    eos_token_ids: list[int] = field(default_factory=list)
    prompt_len: int = 0
    max_length: int = 0
    seed: int | None = None

    def attach(self, params: SamplingParams) -> None:
        """Store this request in `params`, replacing what a client may have put there."""
        params.extra_args = {**(params.extra_args or {}), EXTRA_ARGS_KEY: asdict(self)}

    @classmethod
    def of(cls, params: SamplingParams | None) -> HFRequest:
        """Read the request that `attach` stored; all defaults if there is none."""
        carried = (params.extra_args or {}).get(EXTRA_ARGS_KEY) if params is not None else None
        return cls(**carried) if carried else cls()
