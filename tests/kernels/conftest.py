"""Fixtures of the kernel tests."""

from typing import Any

import pytest

from tests.kernels.logits.seen_token_cases import DEVICES, IMPLEMENTATIONS


@pytest.fixture(params=sorted(IMPLEMENTATIONS))
def ops(request: pytest.FixtureRequest) -> Any:
    """The public functions, as the compiled library and as torch implement them."""
    return IMPLEMENTATIONS[request.param]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)
