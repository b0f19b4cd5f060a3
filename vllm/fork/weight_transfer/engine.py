"""The engine's side of the backend ``"gloo"``: a worker receives tensors, and loads each."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferUpdateInfo,
)
from vllm.fork.live_weights.registry import live_weights_of
from vllm.fork.weight_transfer.group import Group, Meeting
from vllm.model_executor.model_loader.reload import (
    finalize_layerwise_reload,
    initialize_layerwise_reload,
)

if TYPE_CHECKING:
    from vllm.config import VllmConfig, WeightTransferConfig


@dataclass
class GlooUpdateInfo(WeightTransferUpdateInfo):
    """The tensors that follow, in their order.

    Attributes:
        names: of the checkpoint.
        dtype_names: such as ``"bfloat16"``.
        shapes: whole ones.
        session: in which they come.

    Raises:
        ValueError: a field is of another type, or a tensor cannot be.
    """

    names: list[str]
    dtype_names: list[str]
    shapes: list[list[int]]
    session: str

    def __post_init__(self) -> None:
        for field in ("names", "dtype_names", "shapes"):
            if not isinstance(value := getattr(self, field), list):
                raise ValueError(f"{field} must be a list, and is {value!r:.80}.")
        for name in (*self.names, self.session):
            if not isinstance(name, str):
                raise ValueError(f"names and session must be text, which {name!r:.80} is not.")
        if not len(self.names) == len(self.dtype_names) == len(self.shapes):
            raise ValueError(
                f"{len(self.names)} names, {len(self.dtype_names)} dtypes and {len(self.shapes)} "
                "shapes: there must be as many of each."
            )
        for name in self.dtype_names:
            if not isinstance(getattr(torch, str(name), None), torch.dtype):
                raise ValueError(f"{name!r:.80} is no dtype of PyTorch: send 'bfloat16', for one.")
        for name, shape in zip(self.names, self.shapes, strict=True):
            if not _is_shape(shape):
                raise ValueError(f"{name} has no shape {shape!r:.80}: send a list such as [2, 3].")

    def tensors(self, device: str) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield empty tensors of these dtypes and shapes, by their names."""
        for name, dtype, shape in zip(self.names, self.dtype_names, self.shapes, strict=True):
            yield name, torch.empty(shape, dtype=getattr(torch, dtype), device=device)


def _is_shape(value: Any) -> bool:
    """Return whether a value is a shape of a tensor whose elements PyTorch can count."""
    if not isinstance(value, list) or not all(type(size) is int and size >= 0 for size in value):
        return False
    return math.prod(size or 1 for size in value) < 1 << 56


class GlooEngine(WeightTransferEngine[Meeting, GlooUpdateInfo]):
    """A worker's side of the connection.

    One tensor is in memory at a time, beside what `LiveWeights` needs to pack it.
    """

    init_info_cls = Meeting
    update_info_cls = GlooUpdateInfo

    def __init__(
        self,
        config: WeightTransferConfig,
        vllm_config: VllmConfig,
        device: torch.device,
        model: torch.nn.Module,
    ) -> None:
        super().__init__(config, vllm_config, device, model)
        self._group: Group | None = None
        self._session = ""

    def init_transfer_engine(self, init_info: Meeting) -> None:
        """Meet the trainer, instead of an earlier one."""
        self.shutdown()
        parallel = self.parallel_config
        rank = 1 + parallel.data_parallel_index * parallel.world_size + parallel.rank
        self._group = Group(init_info, rank)
        self._session = init_info.session

    def start_weight_update(self) -> None:
        initialize_layerwise_reload(self.model)

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """As upstream's, which waits for a device that a CPU has not."""
        self.receive_weights(self.parse_update_info(update_info))
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: GlooUpdateInfo) -> None:
        """Receive and load tensors, after their names and shapes were tried.

        Raises:
            ValueError: see `LiveWeights.check` and `LiveWeights.load_weights`.
            RuntimeError: there is no connection, or it was lost, or another trainer has it.
        """
        if self._group is None:
            raise RuntimeError(
                "No trainer is connected, or an update failed and ended the connection: it begins "
                "with the trainer's trainer_init."
            )
        if update_info.session != self._session:
            raise RuntimeError(
                "Another trainer has connected to this engine since, and one at a time sends "
                "weights: call trainer_init again to be that one."
            )
        try:
            if (live := live_weights_of(self.model)) is not None:
                live.check(update_info.tensors("meta"))
            self.model.load_weights(self._received(self._group, update_info))
        except BaseException:
            self.shutdown()  # the trainer may be in the middle of what nobody receives
            raise

    def _received(self, group: Group, info: GlooUpdateInfo) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in info.tensors("cpu"):
            group.broadcast(tensor).wait()
            yield name, tensor.to(self.device)

    def shutdown(self) -> None:
        if self._group is not None:
            self._group.close()
            self._group = None
