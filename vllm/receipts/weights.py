"""Digests of a checkpoint: its tensors by name, and its configuration."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import torch

from vllm.fork.digests import digest

if TYPE_CHECKING:
    from transformers import PretrainedConfig

_NOT_OF_THE_MODEL = ("_name_or_path", "transformers_version", "dtype", "torch_dtype")
_SIZE = 16


def tensor_digest(tensor: torch.Tensor) -> str:
    """Return the digest of a tensor's dtype, shape and bytes, 32 hexadecimal digits."""
    head = json.dumps([str(tensor.dtype).removeprefix("torch."), list(tensor.shape)])
    values = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return digest(head.encode() + digest(values.numpy().data, _SIZE), _SIZE).hex()


def digest_of_names(tensors: dict[str, str]) -> str:
    """Return the digest of tensors by their names, 32 hexadecimal digits; order does not matter."""
    text = json.dumps(sorted(tensors.items()), separators=(",", ":"))
    return digest(text.encode(), _SIZE).hex()


def config_digest(config: PretrainedConfig) -> str:
    """Return the digest of what a configuration says about the model, 32 hexadecimal digits."""
    said = {
        name: value
        for name, value in config.to_diff_dict().items()
        if name not in _NOT_OF_THE_MODEL
    }
    text = json.dumps(said, sort_keys=True, separators=(",", ":"), default=str)
    return digest(text.encode(), _SIZE).hex()
