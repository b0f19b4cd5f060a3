"""Tensors of a CUDA device on a machine without one, for what PyTorch checks of devices.

Operations on them are the CPU's, and the fork's the emulated CUDA ones, whose kernels may begin
while the one before still runs. As on a GPU, tensors of two devices do not go together, and what
waits for the GPU is noted: reads of its numbers, and copies to it, unless they are from pinned
memory and asked not to block.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from tests.emulated_gpu.launches import loaded
from tests.emulated_gpu.library import EMULATED, NAMESPACE

GPU = torch.device("cuda:0")
CPU = torch.device("cpu")

_COPIES = ("aten::_to_copy", "aten::copy_")
_INDEXING = ("aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_")
"""They take the indices of a GPU's tensor from the CPU, too."""

_WAITS = ("aten::_local_scalar_dense", "aten::nonzero", "aten::equal", "aten::masked_select")


class GpuTensor(torch.Tensor):
    """Says that it is on the GPU; `held` is where its numbers are."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> GpuTensor:
        made: GpuTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=GPU,
        )
        made.held = held
        return made

    def __init__(self, held: torch.Tensor) -> None: ...

    def tolist(self) -> Any:
        """As of any tensor: PyTorch refuses those of subclasses."""
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        raise AssertionError(f"{func} has a tensor of the emulated GPU, outside of its context")


class EmulatedGpu(TorchDispatchMode):
    """Computes what has tensors of the GPU.

    Attributes:
        waits: operations that have waited for the GPU since the list was emptied.
        calls: how often each of the fork's operations was called since this was emptied.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[str] = []
        self.calls: Counter[str] = Counter()
        self._launches = loaded()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._launches.finish()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        leaves = tree_leaves((args, kwargs))
        device = kwargs.get("device")
        if device != GPU and not any(isinstance(x, GpuTensor) for x in leaves):
            return func(*args, **kwargs)
        name = func._schema.name
        _check_devices(name, leaves)
        if name in _WAITS or _copies_to_cpu(name, args, device):
            self.waits.append(name)
        elif not _pinned.issuperset(_blocking_sources(name, args, kwargs)):
            self.waits.append(f"{name} to the GPU")
        if name.startswith("vllm_fork::"):
            self.calls[name.removeprefix("vllm_fork::")] += 1
        if device is not None:
            kwargs["device"] = CPU
        self._launches.begin(func, args, kwargs)
        result = _on_gpu(func)(*_held(args), **_held(kwargs))
        self._launches.keep(result)
        if name == "aten::copy_":
            return args[0]
        return result if device == CPU else _wrapped(result, leaves)


def _copies_to_cpu(name: str, args: tuple[Any, ...], device: torch.device | None) -> bool:
    if name == "aten::copy_":
        return not isinstance(args[0], GpuTensor)
    return name == "aten::_to_copy" and device == CPU


_pinned: set[int] = set()
"""Addresses of memory that is pinned, as far as a GPU that there is not could tell."""

_PAGEABLE = -1


def _blocking_sources(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> set[int]:
    """Return the memory that an operation copies to the GPU while the caller waits, unless it is
    pinned: `_PAGEABLE` if it waits in any case.
    """
    if name in _INDEXING:  # indices that are not on the GPU, or in lists, are moved there
        return {_PAGEABLE for x in tree_leaves(args[1:]) if _is_on_cpu(x)}
    if name not in _COPIES:
        return set()
    source = args[1] if name == "aten::copy_" else args[0]
    if not _is_on_cpu(source):
        return set()
    is_asynchronous = kwargs.get("non_blocking", args[2] if len(args) > 2 else False)
    return {source.untyped_storage().data_ptr() if is_asynchronous else _PAGEABLE}


def _is_on_cpu(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and not isinstance(x, GpuTensor) and x.dim() > 0


@contextmanager
def _pinning() -> Iterator[None]:
    """Let vLLM make pinned tensors, which PyTorch refuses without a GPU."""
    kept: list[torch.Tensor] = []  # so that no other memory gets their addresses

    def pinning(make: Any) -> Any:
        def call(*arguments: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
            made: torch.Tensor = make(*arguments, **options)
            if pin_memory:
                kept.append(made)
                _pinned.add(made.untyped_storage().data_ptr())
            return made

        return call

    with (
        mock.patch("vllm.utils.torch_utils.is_pin_memory_available", return_value=True),
        mock.patch("torch.tensor", pinning(torch.tensor)),
        mock.patch("torch.empty", pinning(torch.empty)),
    ):
        try:
            yield
        finally:
            _pinned.clear()


def _on_gpu(func: Any) -> Any:
    """Return what computes an operation: the emulated kernel of the fork's, where there is one."""
    namespace, _, name = func._schema.name.partition("::")
    if namespace != "vllm_fork" or name not in EMULATED:
        return func
    return getattr(getattr(torch.ops, NAMESPACE), name).default


def _check_devices(name: str, leaves: list[Any]) -> None:
    if name in _COPIES:
        return
    others = [x for x in leaves if _is_on_cpu(x)]
    if not others or not any(isinstance(x, GpuTensor) for x in leaves):
        return
    first = next(x for x in leaves if isinstance(x, torch.Tensor))
    if (
        name in _INDEXING
        and isinstance(first, GpuTensor)
        and all(not x.is_floating_point() for x in others)
    ):
        return
    raise RuntimeError(f"{name} has tensors on the GPU and on the CPU")


def _held(tree: Any) -> Any:
    return tree_map(lambda x: x.held if isinstance(x, GpuTensor) else x, tree)


def _wrapped(result: Any, leaves: list[Any]) -> Any:
    """Return a result as tensors of the GPU: what an operation gives back is what it was given."""
    known = {id(x.held): x for x in leaves if isinstance(x, GpuTensor)}

    def wrap(x: Any) -> Any:
        if not isinstance(x, torch.Tensor) or isinstance(x, GpuTensor):
            return x
        return known[id(x)] if id(x) in known else GpuTensor(x)

    return tree_map(wrap, result)


@contextmanager
def _moves_are_seen() -> Iterator[None]:
    """Let ``torch.tensor(..., device=GPU)`` move what it has made as other operations do."""
    before = torch._C._only_lift_cpu_tensors()
    torch._C._set_only_lift_cpu_tensors(True)
    try:
        yield
    finally:
        torch._C._set_only_lift_cpu_tensors(before)


@contextmanager
def emulated_gpu() -> Iterator[EmulatedGpu]:
    """Give this process a GPU, `GPU`, for tensors."""
    with (
        torch.library._scoped_library("vllm_fork", "IMPL") as library,
        mock.patch("torch.cuda._lazy_init"),
        _moves_are_seen(),
        _pinning(),
        torch.no_grad(),
        EmulatedGpu() as gpu,
    ):
        for name in EMULATED:
            library.impl(name, getattr(getattr(torch.ops, NAMESPACE), name).default, "CUDA")
        yield gpu


def to_gpu(model: nn.Module) -> nn.Module:
    """Move the parameters and buffers of a model to the GPU, in place."""
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                moved = GpuTensor(parameter.data)
                module._parameters[name] = nn.Parameter(moved, requires_grad=False)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = GpuTensor(buffer)
    return model
