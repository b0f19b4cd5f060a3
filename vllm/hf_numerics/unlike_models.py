"""Settings of a model with which vLLM's definition of it is not what Hugging Face computes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

_WITHOUT_OUTPUT_BIAS = ("cohere", "cohere2", "olmoe", "qwen3", "qwen3_moe")
"""Types of models whose ``o_proj`` has a bias in Transformers if ``attention_bias`` is set, and
none in vLLM, which leaves out that of a checkpoint without a word.
"""


def check_output_bias(config: PreTrainedConfig, flag: str, instead: str) -> None:
    """Check that the attention of a model has all of its biases in vLLM.

    Args:
        config: of the model's text part.
        flag: what would not be kept, as the user writes it.
        instead: what the user can do.

    Raises:
        ValueError: the bias of the output projection would be lost.
    """
    if config.model_type in _WITHOUT_OUTPUT_BIAS and getattr(config, "attention_bias", False):
        raise ValueError(
            f"{flag} does not go with a model of type {config.model_type} that has "
            "attention_bias=True, since vLLM's definition of it leaves the bias of o_proj out: "
            f"{instead}."
        )


def check_window(config: PreTrainedConfig) -> None:
    """Check that a window is one that Transformers keeps to.

    Raises:
        ValueError: it has one token; ``DynamicSlidingWindowLayer`` keeps all of them then.
    """
    if getattr(config, "sliding_window", None) == 1:
        raise ValueError(
            "hf_compat does not go with sliding_window=1, since generate() sees all tokens from "
            "the second step on where its cache is to keep none: use a model with another window."
        )
