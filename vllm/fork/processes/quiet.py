"""Commands whose output is their answer: no log but errors, and one sentence for what is wrong."""

from __future__ import annotations

import argparse
import os


def log_errors_only(args: argparse.Namespace) -> None:
    """Let vLLM log errors alone, unless the environment says more.

    Args:
        args: with vLLM's own options of logging; the level is changed in place.
    """
    from vllm.logger import configure_logging_from_args

    if "VLLM_LOGGING_LEVEL" not in os.environ:
        os.environ["VLLM_LOGGING_LEVEL"] = args.log_level = "ERROR"
    configure_logging_from_args(args)


def sentence_of(error: Exception) -> str:
    """Return what is wrong; of an error of the system the file and the reason."""
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}."
    return str(error)
