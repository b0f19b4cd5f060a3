"""The configuration of InternLM2: Llama's, with one flag for the biases of attention."""

from typing import Any

from transformers import LlamaConfig


class InternLM2Config(LlamaConfig):
    """Fields of ``LlamaConfig``.

    Args:
        bias: whether the projections of attention have biases.
    """

    model_type = "internlm2"

    def __init__(self, bias: bool = False, **kwargs: Any) -> None:
        self.bias = bias
        super().__init__(**kwargs)
