"""Which fields of a configuration Transformers' class reads."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, PreTrainedConfig

_PASSING_ON = ("configuration_utils.py", "dataclasses.py", "copy.py")
"""Files that read a field for others, or all of them, to write and to check."""


def fields_read(config_class: type[PreTrainedConfig], arguments: dict[str, Any]) -> set[str]:
    """Return the fields that are read while a model is made, and computes a few tokens.

    What the class of the configuration derives other fields from is read as well.

    Args:
        config_class: Transformers' class of the configuration.
        arguments: of the class; of a small model, which is made.
    """
    read: set[str] = set()
    config = _recording(config_class, read)(**arguments)
    model_class: Any = MODEL_FOR_CAUSAL_LM_MAPPING[config_class]
    model = model_class._from_config(config, dtype=torch.float32).eval()
    with torch.inference_mode():
        model.generate(torch.tensor([[5, 6, 7]]), max_new_tokens=2, do_sample=False, pad_token_id=0)
    return read


def _recording(config_class: type[PreTrainedConfig], into: set[str]) -> type[PreTrainedConfig]:
    """Return a class that notes what is read of its objects."""

    read: Any = config_class.__getattribute__

    def note(self: Any, name: str) -> Any:
        if not name.startswith("_") and is_reader(sys._getframe(1)):
            into.add(config_class.attribute_map.get(name, name))
        return read(self, name)

    return type(config_class.__name__, (config_class,), {"__getattribute__": note})


def is_reader(frame: FrameType) -> bool:
    """Whether code reads a field to do something by it, not to write or to check it."""
    code = frame.f_code
    return Path(code.co_filename).name not in _PASSING_ON and not code.co_name.startswith(
        ("validate", "_validate", "to_d", "to_json")
    )
