"""``dtype="auto"`` as Transformers resolves it: never another dtype than the model's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import safe_open
from transformers.utils.hub import cached_file

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

_FLOATING = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""safetensors' names of the dtypes that a model can be made in."""


def hf_dtype(model: str, revision: str | None, config: PreTrainedConfig) -> str | None:
    """Return the dtype of ``from_pretrained(model, dtype="auto")``, as vLLM's ``dtype=`` takes it.

    Args:
        model: a folder or a name of the Hub.
        revision: of the Hub's repository.
        config: the model's.

    Returns:
        the configuration's dtype, else the first floating dtype of the checkpoint's first
        safetensors file, else None.

    Source: ``transformers.modeling_utils._get_dtype``.
    """
    dtype = getattr(config, "dtype", None)
    if isinstance(dtype, torch.dtype | str):
        return str(dtype).removeprefix("torch.")
    return _dtype_of_checkpoint(model, revision)


def _dtype_of_checkpoint(model: str, revision: str | None) -> str | None:
    file = _first_file(model, revision)
    if file is None:
        return None
    with safe_open(file, framework="pt") as weights:
        dtypes = (weights.get_slice(name).get_dtype() for name in weights.keys())  # noqa: SIM118
        return next((_FLOATING[dtype] for dtype in dtypes if dtype in _FLOATING), None)


def _first_file(model: str, revision: str | None) -> str | None:
    whole = _find(model, "model.safetensors", revision)
    index = _find(model, "model.safetensors.index.json", revision)
    if whole is not None or index is None:
        return whole
    first = min(json.loads(Path(index).read_text())["weight_map"].values())
    return _find(model, first, revision)


def _find(model: str, name: str, revision: str | None) -> str | None:
    return cached_file(model, name, revision=revision, _raise_exceptions_for_missing_entries=False)
