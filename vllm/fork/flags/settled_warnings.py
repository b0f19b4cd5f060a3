"""Upstream's warnings of what a flag has chosen, which would read as if the user had gone wrong."""

from __future__ import annotations

import logging


def leave_out(logger: str, beginning: str) -> None:
    """Let a logger leave out messages from now on, in this process.

    Args:
        logger: its name.
        beginning: of the message, as it is written in the code.
    """
    own = logging.getLogger(logger)
    if not any(isinstance(one, _Beginning) and one.text == beginning for one in own.filters):
        own.addFilter(_Beginning(beginning))


def leave_out_eager() -> None:
    """Likewise, of what follows from code that a flag leaves uncompiled."""
    leave_out("vllm.config.vllm", "Enforce eager set, disabling torch.compile")
    leave_out("vllm.config.vllm", "Inductor compilation was disabled by user settings")


class _Beginning(logging.Filter):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a message is written."""
        return not str(record.msg).startswith(self.text)
