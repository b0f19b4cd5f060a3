"""``vllm.engine.arg_utils``: the fork's arguments of an engine, and what they ask of the others."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING

from vllm.deterministic import engine_args as deterministic
from vllm.deterministic.joint_norms import check_joint_norms
from vllm.deterministic.states.engine import check_states
from vllm.fork.flags.command_line import ending_commands
from vllm.fork.flags.flag_values import FlagValue, log_decisions
from vllm.fork.flags.fork_flags import ForkFlags, add_cli_args
from vllm.fork.live_weights.arguments import check_weight_transfer
from vllm.fork.processes.one_process import EXECUTOR, use_one_process
from vllm.fork.processes.processes import check_main_is_guarded
from vllm.fork.processes.ray_on_cpus import use_ray_on_cpus
from vllm.fork.startup.attention_backend import (
    check_attention_backend,
    check_head_size,
    use_mla_for_float32,
)
from vllm.fork.startup.compiler import do_without_compiler
from vllm.fork.startup.decode_graphs import normalise_compilation_config
from vllm.fork.startup.kv_cache_space import warn_of_two_sizes
from vllm.fork.startup.missing_packages import check_input_packages, naming_missing_packages
from vllm.fork.startup.model_path import check_model_path
from vllm.fork.startup.system_libraries import check_system_libraries
from vllm.hf_compat.engine_config import use_hf_semantics
from vllm.hf_layers.definition.fields import change_fields
from vllm.hf_layers.engine import engine_args as hf_layers
from vllm.hf_layers.engine.float16 import with_hf_float16
from vllm.hf_layers.strict import note_settings
from vllm.receipts import engine_args as receipts
from vllm.twin.check import check_definition
from vllm.twin.own_model import takes_own_model

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.engine.arg_utils import EngineArgs
    from vllm.usage.usage_lib import UsageContext

__all__ = [
    "FlagValue",
    "ForkFlags",
    "add_cli_args",
    "naming_missing_packages",
    "prepare_engine_args",
    "prepare_engine_config",
    "with_hf_float16",
]


@ending_commands
def prepare_engine_args(args: EngineArgs, flags: ForkFlags) -> EngineArgs:
    """Change the arguments as the flags need it, in place; nothing without flags.

    Returns:
        a copy of them as they were, for upstream writes its defaults into them.

    Raises:
        ValueError: an argument does not go with a flag, or with the platform, there is no model at
            a path, or the system lacks a library or, where code is to be compiled, a compiler.
        SystemExit: see `check_main_is_guarded`.
    """
    given = copy(args)
    check_main_is_guarded()
    check_model_path(args.model)
    check_system_libraries()
    if flags.hf_compat or flags.deterministic:
        normalise_compilation_config(args)
        warn_of_two_sizes(args)
    check_attention_backend(args)
    if args.distributed_executor_backend in (EXECUTOR, hf_layers.ONE_PROCESS):
        args.distributed_executor_backend = None  # chosen for an earlier engine of these arguments
    use_one_process(args, flags)
    deterministic.prepare_engine_args(args, flags)
    hf_layers.prepare_engine_args(args, flags)
    use_mla_for_float32(args)
    receipts.prepare_engine_args(args, flags)
    check_weight_transfer(args, flags)
    do_without_compiler(args)
    return given


@ending_commands
def prepare_engine_config(
    vllm_config: VllmConfig, given: EngineArgs, usage_context: UsageContext | None, headless: bool
) -> VllmConfig:
    """Return the configuration of an engine, with HF's defaults, once it is checked that hf_compat
    can be honoured; without flags nothing but `use_ray_on_cpus` and what is refused.

    Where vLLM's definition of the model is not known to have Transformers' bits, it is the
    configuration of an engine that runs Transformers' own model: see `takes_own_model`.

    Args:
        vllm_config: as vLLM has made it.
        given: the arguments of `prepare_engine_args`.
        usage_context: as for ``EngineArgs.create_engine_config``.
        headless: likewise.

    Raises:
        ValueError: the configuration asks for something that hf_compat cannot answer like HF,
            or with other bits and ``hf_compat="strict"``, or inputs need a missing package, or
            the model has heads that attention on CPUs has no kernels for, or vLLM's definition
            of it is another function than Transformers'.
    """
    log_decisions()
    check_input_packages(vllm_config)
    if takes_own_model(vllm_config, given):
        given.hf_compat = "exact"
        return given.create_engine_config(usage_context, headless)
    check_states(vllm_config)
    check_joint_norms(vllm_config)
    check_head_size(vllm_config)
    if ForkFlags.of(vllm_config).hf_compat:
        use_hf_semantics(vllm_config)
        note_settings(vllm_config)
    check_definition(vllm_config)
    change_fields(vllm_config)
    use_ray_on_cpus(vllm_config)
    return vllm_config
