"""Runs in the assembled tree on a GPU that is only said to be there.

    python switches_probe.py MODEL

prints as JSON PyTorch's switches before exact mode loads MODEL, and when it first computes.
"""

from __future__ import annotations

import faked_gpu  # noqa: F401  # isort: skip  # before anything asks for the platform
import json
import sys
import tempfile
from typing import Any
from unittest import mock

import vllm
from vllm.config import DeviceConfig, set_current_vllm_config
from vllm.distributed import ensure_model_parallel_initialized, init_distributed_environment
from vllm.engine.arg_utils import EngineArgs
from vllm.fork.startup.torch_switches import read_switches
from vllm.hf_model.model import ExactModel
from vllm.model_executor.model_loader import get_model


def main() -> None:
    found: dict[str, Any] = {"vllm": vllm.__file__, "before": read_switches()}

    def note(*_: Any) -> None:
        found["computing"] = read_switches()

    config = EngineArgs(
        model=sys.argv[1], dtype="bfloat16", hf_compat="exact"
    ).create_engine_config()
    config.device_config = DeviceConfig("cpu")  # where the model is put
    with (
        set_current_vllm_config(config),
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(ExactModel, "_try_groups", note),
    ):
        init_distributed_environment(1, 0, f"file://{folder}/store", 0, "gloo")
        ensure_model_parallel_initialized(1, 1)
        get_model(vllm_config=config)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
