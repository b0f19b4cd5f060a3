"""Of what flags have chosen themselves nobody is warned, and of all else as before."""

from __future__ import annotations

import logging

import pytest

from vllm.fork.flags.settled_warnings import leave_out


def test_other_messages_stay(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("tests.settled")
    for _ in range(2):
        leave_out("tests.settled", "Nobody %s")
    assert len(logger.filters) == 1
    logger.warning("Nobody %s this", "reads")
    logger.warning("Somebody %s this", "reads")
    logging.getLogger("tests.unsettled").warning("Nobody %s this", "filters")
    assert caplog.messages == ["Somebody reads this", "Nobody filters this"]
