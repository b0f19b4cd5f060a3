"""``vllm.entrypoints.cli``: the commands that the fork adds to ``vllm``."""

from vllm.bulk.cli import BulkCommand
from vllm.entrypoints.cli.types import CLISubcommand
from vllm.parity.cli import ParityCommand
from vllm.receipts.cli import AuditCommand


def cmd_init() -> list[CLISubcommand]:
    """Return the commands, as each module of vLLM's command line does."""
    return [ParityCommand(), BulkCommand(), AuditCommand()]


__all__ = ["cmd_init"]
