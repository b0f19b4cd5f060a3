"""The trainer's side of the backend ``"gloo"``."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self
from uuid import uuid4

import torch

from vllm.distributed.weight_transfer.base import (
    ParamMeta,
    TrainerInitInfo,
    TrainerWeightTransferEngine,
    VLLMWeightSyncClient,
    WeightSource,
)
from vllm.fork.weight_transfer.group import TRAINER, Group, Meeting
from vllm.fork.weight_transfer.registry import BACKEND

_POLL_S = 0.001


@dataclass
class GlooTrainerInitInfo(TrainerInitInfo):
    """Where a trainer meets the workers of its engines.

    Attributes:
        master_address: of the sending trainer, as the workers reach it.
        master_port: a free port on it.
        world_size: 1 and the number of all workers, 2 for an engine of one worker.
        timeout_s: seconds that either side waits for the other, to meet and for each tensor.
        rank: of this trainer process; 0 sends.
    """

    backend: ClassVar[str] = BACKEND

    master_address: str
    master_port: int
    world_size: int = 2
    timeout_s: float = 300.0


class GlooTrainer(TrainerWeightTransferEngine[GlooTrainerInitInfo]):
    """Sends weights through gloo, tensor after tensor, from a CPU or a GPU.

    Args:
        client: of the engine's routes, as for all of vLLM's weight transfer engines.
        source: of the weights.
        group: with the workers; None for a trainer process that does not send.
        session: the meeting's name.
    """

    init_info_cls = GlooTrainerInitInfo

    def __init__(
        self,
        *,
        client: VLLMWeightSyncClient,
        source: WeightSource,
        group: Group | None,
        session: str,
    ) -> None:
        super().__init__(client=client, source=source, is_sender=group is not None)
        self._group = group
        self._session = session

    @classmethod
    def trainer_init(
        cls,
        init_info: GlooTrainerInitInfo,
        *,
        client: VLLMWeightSyncClient,
        source: WeightSource | None = None,
    ) -> Self:
        """Meet the workers of an engine that has ``weight_transfer_config={"backend": "gloo"}``.

        Raises:
            ValueError: there is no source.
            Exception: what the client raises if the engine refuses.
            RuntimeError: the workers did not come in time.
        """
        if source is None:
            raise ValueError(
                "The backend 'gloo' needs a source of weights: source=ModuleSource(model)."
            )
        if not init_info.is_sender:
            return cls(client=client, source=source, group=None, session="")
        meeting = Meeting(
            init_info.master_address,
            init_info.master_port,
            init_info.world_size,
            init_info.timeout_s,
            uuid4().hex,
        )
        with ThreadPoolExecutor(1) as executor:
            told = executor.submit(client.init_weight_transfer_engine, asdict(meeting))
            group = Group(meeting, TRAINER)
            told.result()
        return cls(client=client, source=source, group=group, session=meeting.session)

    def send_weights(self, weight_version: str | None = None) -> None:
        """Give the engine all weights of the source; it answers with them when this returns.

        Args:
            weight_version: what the engine's ``/weight_info`` says from then on, such as the step
                of training; None keeps what it says.

        Raises:
            TypeError: weight_version is no text.
            ValueError: the source yields something else than its metadata says.
            Exception: what the client raises if the engine refuses, or is gone.
            RuntimeError: a connection is gone. After either `trainer_init` makes a new one.
        """
        if not isinstance(weight_version, str | None):
            raise TypeError(f"weight_version={weight_version!r} must be a text, such as '7'.")
        assert self.source is not None
        metadata = self.source.metadata()
        if not self.is_sender:
            for _ in self.source:  # joins what the ranks of the trainer do together
                pass
            return
        if self._group is None:
            raise RuntimeError(
                "An earlier update failed, which ended the connection: call trainer_init again."
            )
        try:
            self.client.start_weight_update()
            self._send(self._group, metadata)
            self.client.finish_weight_update(weight_version)
        except BaseException:
            self.shutdown()  # workers may wait for what nobody sends
            raise

    def _send(self, group: Group, metadata: list[ParamMeta]) -> None:
        info = {
            "names": [one.name for one in metadata],
            "dtype_names": [str(one.dtype).removeprefix("torch.") for one in metadata],
            "shapes": [list(one.shape) for one in metadata],
            "session": self._session,
        }
        executor = ThreadPoolExecutor(1)
        try:
            received = executor.submit(self.client.update_weights, info)
            for tensor in _as_announced(self.source, metadata):
                _send_unless_done(group, tensor.detach(), received)
            received.result()
        finally:
            executor.shutdown(wait=False)

    def shutdown(self) -> None:
        """End the connection."""
        if self._group is not None:
            self._group.close()
            self._group = None


def _as_announced(source: Any, metadata: list[ParamMeta]) -> Iterator[torch.Tensor]:
    """Yield the tensors of a source, which are those that it has announced.

    Raises:
        ValueError: one is not; what was sent so far is no update.
    """
    found = iter(source)
    for said in metadata:
        name, tensor = next(found, ("nothing more", torch.empty(0)))
        one = ParamMeta(name, tensor.dtype, tuple(tensor.shape))
        if one != said:
            raise ValueError(
                f"The source yields {one.name} {list(one.shape)} in {one.dtype} where its "
                f"metadata() has {said.name} {list(said.shape)} in {said.dtype}: both must agree."
            )
        yield tensor
    if (more := next(found, None)) is not None:
        raise ValueError(f"The source yields {more[0]}, which its metadata() does not have.")


def _send_unless_done(group: Group, tensor: torch.Tensor, received: Future[None]) -> None:
    """Send a tensor to workers that may stop to listen, which their engine says in words."""
    work = group.broadcast(tensor.cpu().contiguous())
    while not work.is_completed():
        if received.done():
            received.result()  # raises what went wrong
        time.sleep(_POLL_S)
    try:
        work.wait()
    except RuntimeError:
        received.result()
        raise
