"""Parameters that an engine has resolved before: those of a receipt, computed once more."""

from __future__ import annotations

from vllm.hf_compat.grammars.params import StructuredParams

CLAIMED_KEY = "claimed_tokens"
"""Key in ``extra_args`` of the tokens that the receipt says were chosen."""


class ResolvedParams(StructuredParams, kw_only=True):  # type: ignore[call-arg]
    """A ``SamplingParams`` with its `HFRequest` attached, which `Frontend.finish` leaves as it is.

    Only a program can make one: nothing that a client of the server sends becomes it.
    """
