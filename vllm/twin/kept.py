"""Findings of before, on disk."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers

import vllm
from vllm import envs
from vllm.hf_layers.definition.finding import Finding
from vllm.logger import init_logger
from vllm.platforms import current_platform
from vllm.twin.setting import EngineSetting
from vllm.twin.sizes import passed_lengths

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

logger = init_logger(__name__)


def digest(config: PreTrainedConfig, setting: EngineSetting, max_model_len: int) -> str:
    """Return what a finding depends on: configuration, setting, versions, device and code."""
    fields = config.to_dict()
    fields.pop("_name_or_path", None)
    facts = {
        "config": fields,
        "setting": setting.as_json(),
        "lengths": passed_lengths(fields, max_model_len),
        "versions": [vllm.__version__, transformers.__version__, torch.__version__],
        "device": [current_platform.device_type, torch.backends.cpu.get_cpu_capability()],
        "code": [_code(), _own_code(config, setting)],
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()


def _own_code(config: PreTrainedConfig, setting: EngineSetting) -> str:
    """Likewise of the files of a model that brings its code; "" where it may not be run."""
    return _files(Path(config.name_or_path)) if setting.remote_code else ""


@functools.cache
def _code() -> str:
    """Return a digest of all files of vLLM, compiled ones, too."""
    return _files(Path(vllm.__file__).parent)


def _files(of: Path) -> str:
    """Return a digest of the names, sizes and times of all files of a folder."""
    digest = hashlib.sha256()
    for folder, folders, files in os.walk(of, followlinks=True):
        folders[:] = sorted(one for one in folders if one != "__pycache__")
        for name in sorted(files):
            with suppress(OSError):
                found = os.stat(os.path.join(folder, name))
                digest.update(f"{folder}/{name} {found.st_size} {found.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def find(name: str) -> Finding | None:
    """Return a finding that was kept; None if there is none, or none that could be read."""
    with suppress(OSError, ValueError, TypeError, KeyError):
        found: dict[str, Any] = json.loads(_path(name).read_text())
        if found["digest"] == name:
            logger.info("The comparison of definitions was kept in %s.", _path(name))
            return Finding.of_json(found["finding"])
    return None


def keep(name: str, finding: Finding, model: str) -> None:
    """Keep a finding for later engines; without a place for it, each makes it anew.

    Args:
        name: its `digest`.
        finding: to keep.
        model: that it is of, for who reads the file.
    """
    path = _path(name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
            found = {"digest": name, "model": model, "finding": finding.as_json()}
            json.dump(found, file, indent=1)
        os.replace(file.name, path)
    except OSError as error:
        logger.warning("Each start compares definitions again, since none can be kept: %s.", error)


def _path(name: str) -> Path:
    return Path(envs.VLLM_CACHE_ROOT) / "definitions" / f"{name}.json"
