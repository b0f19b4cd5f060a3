"""Fixtures of the kernel tests. They need the distribution installed, with its compiled library."""

from typing import Any

import pytest

from tests.kernels.logits.seen_token_cases import DEVICES, IMPLEMENTATIONS
from vllm.fork_kernels import library


@pytest.fixture(scope="session", autouse=True)
def compiled_library() -> None:
    """Without the library "compiled" would silently test the torch implementation."""
    assert library.load(), f"{library.library_path()} does not load; build and install csrc first"


@pytest.fixture(params=sorted(IMPLEMENTATIONS))
def ops(request: pytest.FixtureRequest) -> Any:
    """The public functions, as the compiled library and as torch implement them."""
    return IMPLEMENTATIONS[request.param]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)
