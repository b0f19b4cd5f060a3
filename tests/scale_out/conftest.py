"""A Ray of these tests' own, on this machine."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator

import pytest

from tests.scale_out.processes import descendants, end_all

SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray's workers would wait for everything else that the machine does.
    "RAY_worker_niceness": "0",
    "RAY_DEDUP_LOGS": "1",
}


@pytest.fixture(scope="session")
def ray_address() -> Iterator[str]:
    """The address of a Ray with logical CPUs for two engines and what feeds them.

    Commands that are started meanwhile find it in ``RAY_ADDRESS``.
    """
    import ray

    before = set(descendants(os.getpid()))
    # The paths of Ray's sockets must not be long.
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        os.environ.update(SETTINGS)
        context = ray.init(
            num_cpus=5,
            include_dashboard=False,
            object_store_memory=200 << 20,
            log_to_driver=False,
            _temp_dir=folder,
        )
        address = context.address_info["gcs_address"]
        os.environ["RAY_ADDRESS"] = address
        started = [one for one in descendants(os.getpid()) if one not in before]
        try:
            yield address
        finally:
            del os.environ["RAY_ADDRESS"]
            left = {*started, *(child for one in started for child in descendants(one.pid))}
            ray.shutdown()
            end_all(left)
