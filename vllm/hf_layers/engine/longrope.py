"""The length of texts for which Transformers and vLLM take the same factors of LongRoPE.

LongRoPE (Ding et al., 2024), which the long models of Phi-3 and Phi-4-mini have, scales rotary
frequencies by short factors up to the length that a model was first trained with, and by long
ones beyond. Transformers chooses by each text (``modeling_rope_utils.dynamic_rope_update``), vLLM
by the longest that an engine takes (``Phi3LongRoPEScaledRotaryEmbedding``); left to itself, it
takes none that needs the long factors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm.fork.flags.fork_flags import IS_TWIN

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from vllm.engine.arg_utils import EngineArgs


def check_length_with_longrope(args: EngineArgs, config: PreTrainedConfig, given: str) -> None:
    """Check that all texts of an engine have the factors that Transformers gives them.

    Args:
        args: of the engine.
        config: of the model's text part.
        given: the flag, as it was given.

    Raises:
        ValueError: longer texts are asked for, with which all would have the long factors.
    """
    parameters = getattr(config, "rope_parameters", None) or {}
    if parameters.get("rope_type") != "longrope" or IS_TWIN in args.additional_config:
        return  # of a twin, whose lengths are not the model's, the logits tell
    trained = getattr(config, "original_max_position_embeddings", None)
    if trained is None:
        trained = parameters["original_max_position_embeddings"]
    if args.max_model_len is not None and args.max_model_len > trained:
        raise ValueError(
            f"{given} does not go with max_model_len={args.max_model_len}, since vLLM would "
            f"compute texts of up to {trained} tokens with LongRoPE's factors for longer ones, "
            f'unlike Transformers: use max_model_len={trained}, or hf_compat="exact".'
        )
