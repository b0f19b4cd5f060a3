"""Which fields of a ``GenerationConfig`` shape the logits, and which this release refuses."""

from __future__ import annotations

from typing import Any

from transformers import GenerationConfig
from transformers.generation.configuration_utils import GenerationMode

from vllm.exceptions import VLLMValidationError

# Fields that the worker honours in every step, with the values that leave the logits alone.
LOGITS_FIELDS: dict[str, tuple[Any, ...]] = {
    "guidance_scale": (1, 1.0),
    "sequence_bias": (),
    "encoder_repetition_penalty": (1.0,),
    "repetition_penalty": (1.0,),
    "no_repeat_ngram_size": (0,),
    "encoder_no_repeat_ngram_size": (0,),
    "bad_words_ids": (),
    "min_length": (0,),
    "min_new_tokens": (0,),
    "forced_bos_token_id": (),
    "forced_eos_token_id": (),
    "remove_invalid_values": (False,),
    "exponential_decay_length_penalty": (),
    "suppress_tokens": (),
    "begin_suppress_tokens": (),
    "watermarking_config": (),
    "renormalize_logits": (False,),
    "output_scores": (False,),
    "output_logits": (False,),
}
SAMPLING_FIELDS: dict[str, tuple[Any, ...]] = {
    "temperature": (1.0,),
    "top_h": (),
    "top_k": (0,),
    "top_p": (1.0,),
    "min_p": (0.0,),
    "typical_p": (1.0,),
    "epsilon_cutoff": (0.0,),
    "eta_cutoff": (0.0,),
}
"""Likewise, but HF looks at them only if it samples."""

# Fields that would change what `generate()` returns, with the values that do not. What a merged
# configuration may hold besides is honoured elsewhere (lengths, stopping) or has no effect on the
# tokens (caches, compilation, padding of one prompt, parameters of beams).
REFUSED_FIELDS: dict[str, tuple[Any, ...]] = {
    "output_attentions": (False,),
    "output_hidden_states": (False,),
    "penalty_alpha": (0, 0.0),
    "token_healing": (False,),
}

_HUB_CODE = "Transformers has no code for it, but downloads some from the Hub"
_REASONS = {
    "output_attentions": "the engine's kernels keep no attention weights",
    "output_hidden_states": "the engine keeps no hidden states",
    "penalty_alpha": f"it asks for contrastive search, and {_HUB_CODE}",
    "token_healing": "it replaces the end of the prompt, which the engine has taken already; give "
    "the ids that Transformers' heal_tokens() returns as the prompt",
}

_BEAM_FIELDS = {
    "num_beams": (),
    "length_penalty": (),
    "early_stopping": (),
    "num_return_sequences": (),
    "max_time": (),
    "stop_strings": (),
}

_MODES = (
    GenerationMode.GREEDY_SEARCH,
    GenerationMode.SAMPLE,
    GenerationMode.BEAM_SEARCH,
    GenerationMode.BEAM_SAMPLE,
)
_ASSISTED = GenerationMode.ASSISTED_GENERATION


def active_fields(config: GenerationConfig, neutral: dict[str, tuple[Any, ...]]) -> dict[str, Any]:
    """Return the fields named in `neutral` that have another value than it says, in its order."""
    values = {name: getattr(config, name, None) for name in neutral}
    return {
        name: value
        for name, value in values.items()
        if value is not None and value not in neutral[name]
    }


def step_fields(merged: GenerationConfig) -> dict[str, Any]:
    """Return what changes the choice of a token, in types that JSON has; empty if greedy and bare.

    ``min_new_tokens`` replaces ``min_length`` (``GenerationMixin._prepare_generated_length``).
    """
    fields = active_fields(merged, LOGITS_FIELDS)
    if merged.min_new_tokens is not None:
        fields.pop("min_length", None)
    if merged.do_sample:
        fields |= {"do_sample": True, **active_fields(merged, SAMPLING_FIELDS)}
    if (merged.num_beams or 1) > 1:
        fields |= active_fields(merged, _BEAM_FIELDS)
    if isinstance(merged.sequence_bias, dict):
        fields["sequence_bias"] = [[list(ids), bias] for ids, bias in merged.sequence_bias.items()]
    if merged.watermarking_config is not None:
        fields["watermarking_config"] = merged.watermarking_config.to_dict()
    return fields


def check_fields(merged: GenerationConfig) -> None:
    """Refuse a configuration whose tokens this release cannot reproduce.

    Raises:
        VLLMValidationError: names the first such field and its value.
    """
    for name, value in active_fields(merged, REFUSED_FIELDS).items():
        raise VLLMValidationError(
            f"hf_compat does not reproduce {name}={value!r}: {_REASONS[name]}. Leave it at its "
            "default, or run this request without hf_compat."
        )


def check_request(merged: GenerationConfig) -> None:
    """Refuse a request in another mode than greedy search, sampling or beams, or with other fields.

    Assisted greedy decoding (prompt lookup) gives the tokens of greedy search, and is that here.

    Raises:
        VLLMValidationError: names what is not supported.
    """
    mode = merged.get_generation_mode()
    if mode is _ASSISTED and merged.do_sample:
        raise VLLMValidationError(
            "hf_compat does not reproduce the draws of assisted sampling: leave "
            "prompt_lookup_num_tokens and the other options of assisted decoding out, or set "
            "do_sample=False, for which the tokens are those of greedy search."
        )
    if mode not in (*_MODES, _ASSISTED):
        raise VLLMValidationError(
            "hf_compat reproduces greedy search, sampling, beam search and beam sampling, and this "
            f"request (or the model's generation_config.json) asks for {mode.value}: {_HUB_CODE}. "
            "Leave its parameters out, or run it without hf_compat."
        )
    check_fields(merged)
