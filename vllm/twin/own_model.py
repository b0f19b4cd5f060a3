"""Whether an engine in hf_compat runs Transformers' own model, as exact mode does, since vLLM's
definition is not known to have its bits.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

from vllm.fork.flags.fork_flags import IS_TWIN, ForkFlags
from vllm.hf_layers.definition.configuration import config_of
from vllm.hf_layers.definition.finding import Finding
from vllm.hf_layers.engine.engine_args import excluded_by_exact
from vllm.hf_layers.engine.exact_models import could_be_exact
from vllm.hf_layers.engine.unlike_models import unlike
from vllm.logger import init_logger
from vllm.platforms import current_platform
from vllm.twin.definition import definition_of, setting_of
from vllm.twin.setting import EngineSetting

if TYPE_CHECKING:
    from vllm.config import ModelConfig, VllmConfig
    from vllm.engine.arg_utils import EngineArgs

logger = init_logger(__name__)

_VLLM_STOPS = "vLLM does not run its twin"


def takes_own_model(vllm_config: VllmConfig, given: EngineArgs) -> bool:
    """Whether Transformers' own model is to take the place of vLLM's: it goes with all that is
    asked for, vLLM's definition does not have its bits, and a twin that runs so has all of them.

    Args:
        vllm_config: of the engine, as vLLM's model has it.
        given: the arguments of the engine, before anything is written into them.

    Raises:
        ValueError: see `definition_of`.
    """
    flags, model = ForkFlags.of(vllm_config), vllm_config.model_config
    if not flags.has_hf_layers or flags.is_portable or IS_TWIN in vllm_config.additional_config:
        return False
    if flags.hf_compat == "exact" or not _is_possible(vllm_config, given):
        return False
    if (reason := _reason(model, flags)) is None:
        return False
    own = definition_of(model, replace(flags, hf_compat="exact", split_qkv=None))
    if own.agreement != "bits":
        return False
    logger.warning(
        '%s: the engine runs Transformers\' own %s, as hf_compat="exact" does, since %s. '
        'model_impl="vllm" keeps vLLM\'s.',
        flags.as_given,
        model.architecture,
        reason,
    )
    return True


def _reason(model: ModelConfig, flags: ForkFlags) -> str | None:
    """Return why vLLM's definition is not enough; None if it is."""
    with suppress(OSError, ValueError, KeyError):  # what cannot be read is another's to say
        config = config_of(model).get_text_config()
        if found := unlike(config, model.max_model_len):
            return f"vLLM's definition does not go with {found.what}, {found.why}"
    if model.has_inner_state and setting_of(model, flags).expects_bits:
        return "its layers keep states, which vLLM's kernels compute in an order of their own"
    finding = definition_of(model, flags, with_causes=False)
    if not _is_needed(finding, setting_of(model, flags)):
        return None
    return (
        f"{finding}, and not to the last bit" if finding.agreement == "rounding" else str(finding)
    )


def _is_needed(finding: Finding, setting: EngineSetting) -> bool:
    """Whether vLLM's definition has not the bits that are promised, or ends in an error, or is
    another function.
    """
    if finding.agreement == "unknown":
        return current_platform.is_cpu() and finding.reason.startswith(_VLLM_STOPS)
    if finding.agreement == "rounding":
        return setting.expects_bits
    return finding.agreement == "differs"


def _is_possible(vllm_config: VllmConfig, given: EngineArgs) -> bool:
    """Whether exact mode takes the model, and goes with all that is asked for."""
    model, parallel = vllm_config.model_config, vllm_config.parallel_config
    flags, budget = ForkFlags.of(vllm_config), given.max_num_batched_tokens
    excluded = (
        given.model_impl != "auto",
        model.runner_type != "generate",
        model.is_multimodal_model,
        model.quantization is not None,
        not _is_causal(model),
        parallel.data_parallel_size > 1,
        budget is not None and budget < model.max_model_len,
        *(bool(is_given) for is_given, _ in excluded_by_exact(given, flags).values()),
    )
    return not any(excluded) and could_be_exact(vllm_config)


def _is_causal(model: ModelConfig) -> bool:
    """Whether Transformers, or the model's own code, has a causal language model of it."""
    config = model.hf_config
    has_code = "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or {})
    return type(config) in MODEL_FOR_CAUSAL_LM_MAPPING or (model.trust_remote_code and has_code)
