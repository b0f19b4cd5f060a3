"""The connection between a trainer and the workers of its engines: TCP, through PyTorch's gloo."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import get_type_hints

import torch
from torch import distributed as dist

from vllm.distributed.utils import (
    stateless_destroy_torch_distributed_process_group,
    stateless_init_torch_distributed_process_group,
)
from vllm.distributed.weight_transfer.base import WeightTransferInitInfo

TRAINER = 0
"""Its rank in the group; the workers' follow."""

_LONGEST_S = 7 * 24 * 3600


@dataclass
class Meeting(WeightTransferInitInfo):
    """Where both sides meet: the trainer decides it, and tells the workers.

    Attributes:
        host: of the trainer, as the workers reach it.
        port: free on it.
        world_size: the trainer and all workers: 1 + data parallel x pipeline parallel x tensor
            parallel sizes.
        timeout_s: seconds that either side waits for the other, to meet and for each tensor.
        session: a name for it; workers take updates of the last one.

    Raises:
        ValueError: a field is of another type, or there is nobody to meet.
    """

    host: str
    port: int
    world_size: int
    timeout_s: float
    session: str

    def __post_init__(self) -> None:
        for name, kind in get_type_hints(Meeting).items():
            value = getattr(self, name)
            is_kind = isinstance(value, kind | int if kind is float else kind)
            if not is_kind or isinstance(value, bool):
                raise ValueError(f"{name}={value!r} must be of type {kind.__name__}.")
        if not 0 < self.port < 1 << 16:
            raise ValueError(f"port={self.port} is none of TCP: they are from 1 to 65535.")
        if not 0 < self.timeout_s <= _LONGEST_S:
            raise ValueError(
                f"timeout_s={self.timeout_s} must be more than 0 and at most {_LONGEST_S} (a week)."
            )
        if self.world_size < 2:
            raise ValueError(
                f"world_size={self.world_size} counts the trainer and every worker of the engine: "
                "2 for an engine of one worker."
            )


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
