"""What receipts ask of an engine, before its configuration is made."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.engine.arg_utils import EngineArgs
    from vllm.fork.flags.fork_flags import ForkFlags

LOAD_FORMAT = "digested"
"""Name of `loader.DigestingLoader` among vLLM's model loaders."""

_FORMATS = ("auto", "hf", "safetensors", LOAD_FORMAT)


def prepare_engine_args(args: EngineArgs, flags: ForkFlags) -> None:
    """Choose the loader that takes digests, in place; nothing without the flag.

    Raises:
        ValueError: a flag is missing, or an argument does not go with receipts.
    """
    if not flags.receipts:
        return
    if not (flags.hf_compat and flags.is_portable):
        raise ValueError(
            "receipts are checked by computing an answer again on another machine, for which its "
            "bits must be the same there: give hf_compat=True and deterministic=True, too."
        )
    if args.load_format not in _FORMATS:
        raise ValueError(
            f"receipts do not go with load_format={args.load_format!r}, since the digest of the "
            "weights is that of a checkpoint's tensors: leave it out."
        )
    if args.enable_lora:
        raise ValueError(
            "receipts do not go with enable_lora=True, since adapters have no digest yet: leave "
            "one of them out."
        )
    if args.logits_processors:
        raise ValueError(
            "receipts do not go with logits_processors, which a receipt cannot carry: leave one of "
            "them out."
        )
    args.load_format = LOAD_FORMAT
