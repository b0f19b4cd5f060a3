"""torch.compile on machines that have no C++ compiler, or not Python's headers.

Why: An engine on CPUs ends in a stack trace where there is no C++ compiler, or are no headers of
  Python's.
Upstream status: Bug in 0.32.0, to be reported (upstream-reports/no-compiler.md).
Exit condition: Upstream runs uncompiled there, and says so.
"""

from __future__ import annotations

import logging
import os
import shlex
import shutil
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from vllm.config import CompilationMode
from vllm.platforms import current_platform

if TYPE_CHECKING:
    from vllm.engine.arg_utils import EngineArgs

logger = logging.getLogger("vllm.fork")

_VARIABLE = "TORCH_COMPILE_DISABLE"  # read by torch in the processes that are started later


def do_without_compiler(args: EngineArgs) -> None:
    """On CPUs, turn torch.compile off where it could only fail: it generates C++.

    vLLM compiles models, unless told not to, and a few functions of sampling in any case, when
    the first request needs them; such a request would end the engine.

    Raises:
        ValueError: the model is to be compiled; says what to install or to pass.
    """
    missing = _missing() if current_platform.is_cpu() else ""
    if not missing:
        return
    if not (args.enforce_eager or args.compilation_config.mode == CompilationMode.NONE):
        raise ValueError(
            f"{missing}, with which torch.compile makes code for CPUs: install what is missing "
            "(Debian, Ubuntu: apt install g++ python3-dev), or pass enforce_eager=True "
            "(--enforce-eager)."
        )
    logger.warning("%s: torch.compile is off for all functions.", missing)
    os.environ[_VARIABLE] = "1"
    torch._dynamo.config.disable = True


def _missing() -> str:
    """Return what torch.compile would miss, as the beginning of a sentence; nothing if all is
    there."""
    compiler = shlex.split(os.environ.get("CXX") or "g++")[0]  # as torch._inductor.cpp_builder
    if shutil.which(compiler) is None:
        return f"There is no C++ compiler ({compiler})"
    header = Path(sysconfig.get_path("include"), "Python.h")
    return "" if header.exists() else f"Python's header {header} is not there"
