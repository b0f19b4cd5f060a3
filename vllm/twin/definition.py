"""What vLLM's definition of an engine's model is found to be, beside Transformers'."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from transformers import PreTrainedConfig

from vllm.fork.flags.fork_flags import ForkFlags
from vllm.hf_layers.definition.attn_implementation import attn_implementation
from vllm.hf_layers.definition.configuration import IncompleteRope, config_of
from vllm.hf_layers.definition.finding import Finding
from vllm.hf_layers.engine.unlike_models import check_long_texts
from vllm.logger import init_logger
from vllm.twin import kept
from vllm.twin.process import Task, examine_elsewhere
from vllm.twin.setting import EngineSetting

if TYPE_CHECKING:
    from vllm.config import ModelConfig

logger = init_logger(__name__)


def definition_of(model_config: ModelConfig, flags: ForkFlags, with_causes: bool = True) -> Finding:
    """Return how what an engine computes of a model compares with Transformers.

    Args:
        model_config: of an engine.
        flags: of the engine.
        with_causes: see `find_or_examine`.

    Raises:
        ValueError: see `check_long_texts`; or overrides leave a rope without its theta.
    """
    try:
        config = config_of(model_config)
    except IncompleteRope:
        raise
    except (OSError, ValueError, KeyError) as error:
        return Finding("unknown", f"Transformers cannot read its configuration: {error}")
    longest = model_config.max_model_len
    if flags.hf_compat != "exact":
        check_long_texts(config.get_text_config(), longest, flags.as_given)
    return find_or_examine(config, setting_of(model_config, flags), longest, with_causes)


def setting_of(model_config: ModelConfig, flags: ForkFlags) -> EngineSetting:
    """Return what of an engine with some flags changes how it computes its model."""
    hf_compat = True if flags.hf_compat == "strict" else flags.hf_compat
    return EngineSetting(
        replace(flags, hf_compat=hf_compat, receipts=False),
        str(model_config.dtype).removeprefix("torch."),
        str(model_config.model_impl),
        attn_implementation(model_config),
        model_config.trust_remote_code,
    )


def _examined(task: Task) -> Finding:
    """Return what another process finds; other bits than expected only if a fresh one has them."""
    finding = examine_elsewhere(task).finding
    if finding.agreement == "rounding" and task.setting.expects_bits:
        again = examine_elsewhere(task, is_fresh=True).finding
        return finding if again.agreement == "unknown" else again
    return finding


def find_or_examine(
    config: PreTrainedConfig, setting: EngineSetting, longest: int, with_causes: bool = True
) -> Finding:
    """Return a finding of before; or make it, and keep what was found out.

    Args:
        config: of the model, as Transformers reads it.
        setting: of the engine.
        longest: tokens of the longest text that the engine takes.
        with_causes: whether the cause of a difference is looked for, which takes longest.
    """
    name = kept.digest(config, setting, longest)
    without = f"{name}-without-causes"
    finding = kept.find(name)
    if finding is None and not with_causes:
        finding = kept.find(without)
    if finding is None:
        logger.info_once(
            "Comparing vLLM's definition of the model with Transformers': this takes seconds, and "
            "up to two minutes if they differ."
        )
        finding = _examined(Task(config, setting, longest, with_causes=with_causes))
        if finding.agreement != "unknown":  # what was missing may be there the next time
            is_whole = with_causes or finding.agreement != "differs"
            about = f"{config.name_or_path} ({config.model_type})"
            kept.keep(name if is_whole else without, finding, about)
    return finding
