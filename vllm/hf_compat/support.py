"""Which fields of a ``GenerationConfig`` this release reproduces; the others are refused."""

from __future__ import annotations

from typing import Any

from transformers import GenerationConfig
from transformers.generation.configuration_utils import GenerationMode
from transformers.generation.logits_process import RepetitionPenaltyLogitsProcessor

from vllm.exceptions import VLLMValidationError

# Fields that change what `generate()` returns even in greedy search, with the values that leave
# it alone. What a merged configuration may hold besides is either reproduced (lengths, end of
# sequence, repetition_penalty), or has no effect on greedy tokens (caches, compilation, padding
# of one prompt, parameters of sampling and beams).
NEUTRAL_VALUES: dict[str, tuple[Any, ...]] = {
    "bad_words_ids": (),
    "begin_suppress_tokens": (),
    "encoder_no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1.0,),
    "exponential_decay_length_penalty": (),
    "forced_bos_token_id": (),
    "forced_eos_token_id": (),
    "guidance_scale": (1, 1.0),
    "max_time": (),
    "min_length": (0,),
    "min_new_tokens": (0,),
    "no_repeat_ngram_size": (0,),
    "num_return_sequences": (1,),
    "output_attentions": (False,),
    "output_hidden_states": (False,),
    "output_logits": (False,),
    "output_scores": (False,),
    "remove_invalid_values": (False,),
    "renormalize_logits": (False,),
    "sequence_bias": (),
    "stop_strings": (),
    "suppress_tokens": (),
    "token_healing": (False,),
    "watermarking_config": (),
}


def unsupported_fields(merged: GenerationConfig) -> dict[str, Any]:
    """Return the fields of a merged configuration that would change the tokens, with values."""
    active = {name: getattr(merged, name, None) for name in NEUTRAL_VALUES}
    return {
        name: value
        for name, value in active.items()
        if value is not None and value not in NEUTRAL_VALUES[name]
    }


def check_fields(merged: GenerationConfig) -> None:
    """Refuse a configuration whose tokens this release cannot reproduce.

    Raises:
        VLLMValidationError: names the first such field and its value.
    """
    for name, value in unsupported_fields(merged).items():
        raise VLLMValidationError(
            f"hf_compat does not reproduce {name}={value!r} yet: leave it at its default to get "
            "Hugging Face's tokens, or run this request without hf_compat."
        )


def check_request(merged: GenerationConfig) -> None:
    """Refuse a request that is not greedy search with supported fields.

    Raises:
        VLLMValidationError: names what is not supported, or repeats HF's own complaint about the
            value of ``repetition_penalty``.
    """
    mode = merged.get_generation_mode()
    if mode != GenerationMode.GREEDY_SEARCH:
        raise VLLMValidationError(
            f"hf_compat reproduces greedy search, and this request (or the model's "
            f"generation_config.json) asks for {mode.value}: set do_sample=False and num_beams=1, "
            "in the OpenAI API temperature=0, or run it without hf_compat."
        )
    check_fields(merged)
    try:
        RepetitionPenaltyLogitsProcessor(penalty=merged.repetition_penalty)
    except ValueError as error:
        raise VLLMValidationError(str(error)) from None
