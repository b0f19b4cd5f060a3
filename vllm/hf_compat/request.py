"""What a request carries from the process that accepts it to the worker that runs it."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from vllm.sampling_params import SamplingParams

EXTRA_ARGS_KEY = "hf_compat"
"""Key in ``SamplingParams.extra_args``, which vLLM carries to the workers untouched."""


@dataclass(frozen=True)
class HFRequest:
    """HF's semantics for one request, in types that vLLM's message transport accepts.

    Attributes:
        repetition_penalty: HF's field of that name; 1.0 is off.
    """

    repetition_penalty: float = 1.0

    def attach(self, params: SamplingParams) -> None:
        """Store this request in `params`, replacing what a client may have put there."""
        params.extra_args = {**(params.extra_args or {}), EXTRA_ARGS_KEY: asdict(self)}

    @classmethod
    def of(cls, params: SamplingParams | None) -> HFRequest:
        """Read the request that `attach` stored; all defaults if there is none."""
        carried = (params.extra_args or {}).get(EXTRA_ARGS_KEY) if params is not None else None
        return cls(**carried) if carried else cls()
