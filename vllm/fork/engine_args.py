"""What the flags ask of an engine, before its configuration is made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm.deterministic import engine_args as deterministic
from vllm.fork.attention_backend import check_attention_backend
from vllm.fork.compiler import do_without_compiler
from vllm.fork.decode_graphs import normalise_compilation_config
from vllm.fork.system_libraries import check_system_libraries
from vllm.fork.weight_updates import check_weight_transfer
from vllm.hf_numerics import engine_args as hf_numerics

if TYPE_CHECKING:
    from vllm.engine.arg_utils import EngineArgs
    from vllm.fork.flags import ForkFlags


def prepare_engine_args(args: EngineArgs, flags: ForkFlags) -> None:
    """Change the arguments as the flags need it, in place; nothing without flags.

    Raises:
        ValueError: an argument does not go with a flag, or with the platform, or the system lacks
            a library or, where code is to be compiled, a compiler.
    """
    check_system_libraries()
    if flags.hf_compat or flags.deterministic:
        normalise_compilation_config(args)
    check_attention_backend(args)
    deterministic.prepare_engine_args(args, flags)
    hf_numerics.prepare_engine_args(args, flags)
    check_weight_transfer(args, flags)
    do_without_compiler(args)
