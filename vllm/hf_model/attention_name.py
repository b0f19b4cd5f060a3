"""The name of the attention function that the modules of a Transformers model look up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from transformers import PreTrainedModel


class AttentionName:
    """Lets a model call another attention function for a while.

    Args:
        model: whose parts may have configurations of their own.
        name: in ``ALL_ATTENTION_FUNCTIONS`` and ``ALL_MASK_ATTENTION_FUNCTIONS``.
    """

    def __init__(self, model: PreTrainedModel, name: str) -> None:
        self._name = name
        self._stock = model.config._attn_implementation
        found = (getattr(module, "config", None) for module in model.modules())
        self._configs = {id(one): one for one in found if one is not None}.values()

    @contextmanager
    def is_used(self) -> Iterator[None]:
        """Let all parts of the model call that function, and make the masks for it."""
        for config in self._configs:
            config._attn_implementation_internal = self._name
        try:
            yield
        finally:
            for config in self._configs:
                config._attn_implementation_internal = self._stock
