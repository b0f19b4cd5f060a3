"""The connection between a trainer and the workers of its engines: TCP, through PyTorch's gloo."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import torch
from torch import distributed as dist

from vllm.distributed.utils import (
    stateless_destroy_torch_distributed_process_group,
    stateless_init_torch_distributed_process_group,
)

TRAINER = 0
"""Its rank in the group; the workers' follow."""


@dataclass(frozen=True)
class Meeting:
    """Where both sides meet.

    Attributes:
        host: of the trainer, as the workers reach it.
        port: free on it.
        world_size: the trainer and all workers: 1 + data parallel x pipeline parallel x tensor
            parallel sizes.
        timeout_s: seconds that either side waits for the other, to meet and for each tensor.
        session: a name for it; workers take updates of the last one.
    """

    host: str
    port: int
    world_size: int
    timeout_s: float
    session: str


class Group:
    """A process group in which the trainer alone sends.

    Args:
        meeting: the same for all.
        rank: of this process.

    Raises:
        RuntimeError: the others did not come in time.
    """

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self._group: dist.ProcessGroup = stateless_init_torch_distributed_process_group(
            meeting.host,
            meeting.port,
            rank,
            meeting.world_size,
            backend="gloo",
            timeout=timedelta(seconds=meeting.timeout_s),
        )

    def broadcast(self, tensor: torch.Tensor) -> dist.Work:
        """Send a contiguous tensor on the CPU, or receive into it, by its bytes.

        Returns:
            what is waited for; it raises a RuntimeError if another process is gone.
        """
        options = dist.BroadcastOptions()
        options.rootRank = TRAINER
        return self._group.broadcast([tensor.view(-1).view(torch.uint8)], options)

    def close(self) -> None:
        """End the connection, which is an error for others that wait.

        Its sockets are closed when nobody refers to the group any more.
        """
        stateless_destroy_torch_distributed_process_group(self._group)
        del self._group
