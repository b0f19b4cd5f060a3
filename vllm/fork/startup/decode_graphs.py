"""Code that is run as it is written, on GPUs with CUDA graphs of steps of decoding."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm.config import CompilationConfig, CompilationMode, CUDAGraphMode

if TYPE_CHECKING:
    from vllm.engine.arg_utils import EngineArgs

DEFAULT = CUDAGraphMode.FULL_DECODE_ONLY
"""The graphs of whole steps that only decode; other steps are launched operation by operation.

They are what a GPU waits for least: the launches of a step with few tokens take longer than its
work. Graphs of other steps (``FULL``) take memory and time at the start, and ``PIECEWISE`` ones are
pieces of compiled code.
"""


def normalise_compilation_config(args: EngineArgs) -> None:
    """Make a ``compilation_config`` that is a mode's number, or None, one with fields, in place.

    ``LLM`` does so with what it is given; who makes ``EngineArgs`` need not.

    Raises:
        ValueError: it is neither, or no mode has this number.
    """
    given: object = args.compilation_config
    if given is None:
        args.compilation_config = CompilationConfig()
    elif type(given) is int and given in list(CompilationMode):
        args.compilation_config = CompilationConfig(mode=CompilationMode(given))
    elif not isinstance(given, CompilationConfig):
        raise ValueError(
            f"compilation_config={given!r} is no configuration of compilation: give a dictionary, "
            f"a CompilationConfig, or the number of a mode, 0 to {max(CompilationMode).value}."
        )


def run_uncompiled(args: EngineArgs) -> None:
    """Leave compiled code out, in place, with `DEFAULT` unless the arguments name other graphs, or
    ask for none by ``-O0``.
    """
    args.compilation_config.mode = CompilationMode.NONE
    if args.compilation_config.cudagraph_mode is None:
        is_plain = int(args.optimization_level) == 0
        args.compilation_config.cudagraph_mode = CUDAGraphMode.NONE if is_plain else DEFAULT
