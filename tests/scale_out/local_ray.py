"""Runs a Ray on this machine until stdin ends: ``python -m tests.scale_out.local_ray FOLDER``.

A process of its own, since Ray reads its environment once, when it is imported.
"""

from __future__ import annotations

import sys
from typing import Any

import ray

if __name__ == "__main__":
    context: Any = ray.init(
        num_cpus=5,  # logical: for two engines, and what feeds them
        include_dashboard=False,
        object_store_memory=200 << 20,
        log_to_driver=False,
        _temp_dir=sys.argv[1],
    )
    print(context.address_info["gcs_address"], flush=True)
    sys.stdin.read()
    ray.shutdown()
