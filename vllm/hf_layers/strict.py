"""Settings with which logits are not Hugging Face's to the last bit: strict refuses them.

Without strict the report names them (`vllm.hf_layers.report`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm.fork.flags.fork_flags import ForkFlags
from vllm.hf_layers.engine.exact_models import could_be_exact
from vllm.hf_layers.inexact_settings import inexact_models, inexact_settings

if TYPE_CHECKING:
    from vllm.config import VllmConfig

_KEY = "fork_inexact_settings"
"""Of ``VllmConfig.additional_config``."""


def settings_of(vllm_config: VllmConfig) -> tuple[str, ...]:
    """Return what costs an engine in hf_compat Hugging Face's bits, a sentence each without end."""
    return tuple(vllm_config.additional_config.get(_KEY, ()))


def note_settings(vllm_config: VllmConfig) -> None:
    """Keep what `settings_of` returns in the configuration of an engine in hf_compat, in place:
    its workers have other variables of the environment.

    Raises:
        ValueError: there is any, with ``hf_compat="strict"``, or the model is known to have layers
            that keep vLLM's bits; the sentence names the first, why, and what to do.
    """
    mode = ForkFlags.of(vllm_config).hf_compat
    settings = [] if mode == "exact" else inexact_settings(vllm_config)
    vllm_config.additional_config[_KEY] = list(map(str, settings))
    if mode != "strict":
        return
    for setting in [*settings, *inexact_models(vllm_config)]:
        remedies = [setting.remedy] if setting.remedy else []
        if setting.has_exact and could_be_exact(vllm_config):
            remedies.append('use hf_compat="exact", which runs Transformers\' own model')
        remedies.append("use hf_compat=True, which promises less")
        raise ValueError(
            f'hf_compat="strict" does not go with {setting.name}, since {setting.reason}: '
            f"{', or '.join(remedies)}."
        )
