"""Which fields of a ``GenerationConfig`` shape the logits, and which this release refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transformers import GenerationConfig, SynthIDTextWatermarkingConfig
from transformers.generation.configuration_utils import GenerationMode

from vllm.exceptions import VLLMValidationError

if TYPE_CHECKING:
    from vllm.hf_compat.call.generate_call import GenerateCall

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

# Fields that would change what `generate()` returns, with the values that do not.
REFUSED_FIELDS: dict[str, tuple[Any, ...]] = {
    "output_attentions": (False,),
    "output_hidden_states": (False,),
    "token_healing": (False,),
}

# Fields that say how `generate()` computes, which can change bits and so tokens, likewise. HF makes
# "hybrid" the default.
COMPUTING_FIELDS: dict[str, tuple[Any, ...]] = {
    "use_cache": (True,),
    "cache_implementation": ("dynamic", "hybrid"),
    "prefill_chunk_size": (),
    "use_mtp": (False,),
    "assistant_early_exit": (),
    "is_assistant": (False,),
}

_HUB_CODE = "Transformers has no code for it, but downloads some from the Hub"
_DRAFTS = "drafts are the engine's own: LLM(..., speculative_config=...)"
_REASONS = {
    "output_attentions": "the engine's kernels keep no attention weights",
    "output_hidden_states": "the engine keeps no hidden states",
    "token_healing": "it replaces the end of the prompt, which the engine has taken already; give "
    "the ids that Transformers' heal_tokens() returns as the prompt",
    "use_cache": "with True alone generate() computes one token in a step; the products of whole "
    "sequences round in another way",
    "cache_implementation": "the engine has a cache of its own, with the numbers of a dynamic one; "
    "a static one rounds in another way, and a quantised one has other numbers",
    "prefill_chunk_size": "products of parts of a prompt round in another way; the engine's own "
    "chunks are LLM(..., enable_chunked_prefill=True)",
    "penalty_alpha": f"it asks for contrastive search, and {_HUB_CODE}",
    "use_mtp": _DRAFTS,
    "assistant_early_exit": _DRAFTS,
    "is_assistant": "it ends an answer where a draft would end",
}

HONOURED_ELSEWHERE = frozenset(
    {
        "do_sample",
        "eos_token_id",
        "max_length",
        "max_new_tokens",
        "max_time",
        "pad_token_id",
        "prompt_lookup_num_tokens",
        "stop_strings",
    }
)
"""Fields that say which way tokens are chosen, and when it ends."""

CHOOSE_A_MODE = frozenset(
    {"constraints", "dola_layers", "force_words_ids", "num_beam_groups", "penalty_alpha"}
)
"""Fields that ask for a way of generating that is refused (``get_generation_mode``)."""

HARMLESS_FIELDS: dict[str, str] = {
    **dict.fromkeys(
        (
            "assistant_confidence_threshold",
            "assistant_lookbehind",
            "num_assistant_tokens",
            "num_assistant_tokens_schedule",
            "speculation_type",
            "target_lookbehind",
        ),
        "says how an assistant_model drafts, which is refused",
    ),
    "assistant_ensemble_weight": "likewise; prompt lookup, which HF refuses it for, does so here",
    "bos_token_id": "begins a prompt that is not given",
    "cache_config": "is for a quantised cache, which is refused",
    "compile_config": "compiles steps with a static cache, which is refused",
    "continuous_batching_config": "is for a paged cache, which is refused",
    "decoder_start_token_id": "is for encoder-decoder models, which are refused",
    "disable_compile": "compiles steps with a static cache, which is refused",
    "diversity_penalty": "is for groups of beams, which are refused",
    "low_memory": "HF ignores it, but for beams, for which it is refused here, too",
    "max_cache_len": "is for a static cache, which is refused",
    "max_matching_ngram_size": "finds drafts, of which the tokens do not depend",
    "return_dict_in_generate": "answers have all fields",
    "transformers_version": "says who wrote the configuration",
    "_from_model_config": "likewise",
}
"""Fields that change neither tokens nor bits, and why."""

BEAM_FIELDS = {
    "num_beams": (),
    "length_penalty": (),
    "early_stopping": (),
    "num_return_sequences": (),
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
        fields |= active_fields(merged, BEAM_FIELDS)
    if isinstance(merged.sequence_bias, dict):
        _check_sequences(merged.sequence_bias)
        fields["sequence_bias"] = [[list(ids), bias] for ids, bias in merged.sequence_bias.items()]
    if merged.watermarking_config is not None:
        fields["watermarking_config"] = merged.watermarking_config.to_dict()
    return fields


def _check_sequences(biases: dict[Any, Any]) -> None:
    for key in biases:
        if not isinstance(key, tuple):
            raise VLLMValidationError(
                f"sequence_bias has the key {key!r:.100}: give tuples of token ids, also for one "
                "token, as in {(11, 12): -2.0, (13,): 5.0}.",
                parameter="sequence_bias",
            )


def check_fields(merged: GenerationConfig) -> None:
    """Refuse a configuration whose tokens this release cannot reproduce.

    Raises:
        VLLMValidationError: names the first such field and its value.
    """
    refused = active_fields(merged, {**REFUSED_FIELDS, **COMPUTING_FIELDS})
    if merged.use_cache is None:  # a cache, to which every step adds the whole sequence again
        refused["use_cache"] = None
    if _is_contrastive(merged):
        refused["penalty_alpha"] = merged.penalty_alpha
    for name, value in refused.items():
        raise VLLMValidationError(
            f"hf_compat does not reproduce {name}={value!r}: {_REASONS[name]}. Leave it at its "
            "default, or run this request without hf_compat."
        )


def _is_contrastive(merged: GenerationConfig) -> bool:
    """Whether this is contrastive search; vLLM's parameters of a greedy request have lost top_k."""
    is_greedy = not merged.do_sample and (merged.num_beams or 1) == 1
    return is_greedy and (merged.penalty_alpha or 0) > 0 and merged.top_k not in (None, 1)


def check_request(merged: GenerationConfig) -> None:
    """Refuse a request in another mode than greedy search, sampling or beams, or with other fields.

    Assisted greedy decoding (prompt lookup) gives the tokens of greedy search, and is that here.

    Raises:
        VLLMValidationError: names what is not supported, or what HF fails on.
    """
    _check_numbers(merged)
    check_fields(merged)
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
    if mode is _ASSISTED:
        _check_lookup(merged)


def _check_numbers(merged: GenerationConfig) -> None:
    """Refuse what `generate()` cannot compute with."""
    has_beams = merged.num_beams != 1
    for name, is_needed in {
        "num_beams": True,
        "num_return_sequences": True,
        "length_penalty": has_beams,
    }.items():
        if is_needed and getattr(merged, name) is None:
            raise VLLMValidationError(
                f"generate() raises a TypeError for {name}=None: leave {name} out, or give a "
                "number.",
                parameter=name,
            )
    for name in ("num_beams", "num_return_sequences"):
        value = getattr(merged, name)
        least = 1 if has_beams else None
        if not isinstance(value, int) or (least is not None and value < least):
            raise VLLMValidationError(
                f"generate() fails on {name}={value!r}: give a positive whole number.",
                parameter=name,
            )
    if has_beams and merged.low_memory:
        raise VLLMValidationError(
            "generate() refuses low_memory=True with beams: leave it out.", parameter="low_memory"
        )


_NOT_WITH_LOOKUP = {
    "guidance_scale": (1, 1.0),
    "stop_strings": (),
    "assistant_ensemble_weight": (),
}
"""Fields that look at drafts, too, or only at the last of several tokens, in `generate()`."""

_LEAVE_LOOKUP_OUT = (
    "leave prompt_lookup_num_tokens out, without which the tokens are those of greedy search"
)


def _check_lookup(merged: GenerationConfig) -> None:
    names = list(active_fields(merged, _NOT_WITH_LOOKUP))
    if isinstance(merged.watermarking_config, SynthIDTextWatermarkingConfig):  # counts its calls
        names.append("watermarking_config")
    for name in names:
        raise VLLMValidationError(
            f"{name} does not go with prompt_lookup_num_tokens, with which generate() applies it "
            f"to drafts or fails: {_LEAVE_LOOKUP_OUT}.",
            parameter=name,
        )
    for name in ("prompt_lookup_num_tokens", "max_matching_ngram_size"):
        value = getattr(merged, name)
        if value is None or (name == "max_matching_ngram_size" and value == 0):  # HF takes 2
            continue
        if value <= 0:
            raise VLLMValidationError(
                f"generate() refuses {name}={value!r}: give a positive whole number.",
                parameter=name,
            )


def check_call(call: GenerateCall, merged: GenerationConfig) -> None:
    """Refuse what does not go with prompt lookup beside the fields of a configuration.

    Raises:
        VLLMValidationError: names it.
    """
    if merged.get_generation_mode() is not _ASSISTED:
        return
    others = {
        "logits_processor and prefix_allowed_tokens_fn": call.callbacks is not None,
        "stopping_criteria": call.criteria is not None,
        "as_batch": call.place.num_rows > 1,
    }
    for name, is_asked_for in others.items():
        if is_asked_for:
            raise VLLMValidationError(
                f"With prompt_lookup_num_tokens generate() has {name} look at drafts, too, or "
                f"fails: {_LEAVE_LOOKUP_OUT}."
            )
