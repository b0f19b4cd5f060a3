"""``vllm.entrypoints.cli``: the commands that the fork adds to ``vllm``."""

from vllm.bulk.cli import BulkSubcommand
from vllm.entrypoints.cli.types import CLISubcommand
from vllm.parity.cli import ParitySubcommand
from vllm.receipts.cli import AuditSubcommand


def cmd_init() -> list[CLISubcommand]:
    """Return the commands, as each module of vLLM's command line does."""
    return [ParitySubcommand(), BulkSubcommand(), AuditSubcommand()]


__all__ = ["cmd_init"]
