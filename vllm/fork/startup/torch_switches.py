"""PyTorch's switches that change bits, and what they are in a process that has imported it alone.

vLLM turns some of them in the processes that import it: attention by cuDNN is off there, which
PyTorch prefers on Hopper and Blackwell. So this file imports nothing of it: run as a script, it
prints the switches of a fresh process.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, reduce
from typing import Any

import torch

Switches = dict[str, Any]
"""The values of switches (bool, int, str, None or a list of them), by their names below torch."""

MIXED = "mixed"
"""The value of a switch that PyTorch refuses to read, since older and newer names of it disagree.
"""

READ_ONLY = "_C._get_sdp_priority_order"
"""The order of attention's kinds: PyTorch itself writes it, once, at the first attention on a GPU.

To write what a fresh process has would undo that, so it is told and left as it is.
"""


@dataclass(frozen=True)
class Switch:
    """A global switch of PyTorch.

    Attributes:
        read: returns its value, as in `Switches`.
        write: takes such a value.
    """

    read: Callable[[], Any]
    write: Callable[[Any], Any]


_ATTRIBUTES = (
    "backends.cuda.matmul.allow_tf32",
    "backends.cuda.matmul.allow_fp16_accumulation",
    "backends.cudnn.enabled",
    "backends.cudnn.benchmark",
    "backends.cudnn.benchmark_limit",
    "backends.cudnn.deterministic",
    "backends.cudnn.depthwise_kernel",
    "backends.cudnn.allow_tf32",
    "backends.miopen.immediate",
    "backends.mkldnn.enabled",
    "backends.mkldnn.deterministic",
    "backends.mkldnn.allow_tf32",
    "backends.opt_einsum.enabled",
    "backends.opt_einsum.strategy",
    "backends.python_native.triton.enabled",
    "backends.python_native.cutedsl.enabled",
    "backends.quantized.engine",
    "utils.deterministic.fill_uninitialized_memory",
    # What the older names above write into is written last.
    "backends.fp32_precision",
    "backends.cudnn.fp32_precision",
    "backends.cuda.matmul.fp32_precision",
    "backends.cudnn.conv.fp32_precision",
    "backends.cudnn.rnn.fp32_precision",
    "backends.mkldnn.fp32_precision",
    "backends.mkldnn.matmul.fp32_precision",
    "backends.mkldnn.conv.fp32_precision",
    "backends.mkldnn.rnn.fp32_precision",
)

_FUNCTIONS = {
    "get_float32_matmul_precision": "set_float32_matmul_precision",
    "get_deterministic_debug_mode": "set_deterministic_debug_mode",
    "backends.cuda.flash_sdp_enabled": "backends.cuda.enable_flash_sdp",
    "backends.cuda.mem_efficient_sdp_enabled": "backends.cuda.enable_mem_efficient_sdp",
    "backends.cuda.math_sdp_enabled": "backends.cuda.enable_math_sdp",
    "backends.cuda.cudnn_sdp_enabled": "backends.cuda.enable_cudnn_sdp",
    "backends.cuda.fp16_bf16_reduction_math_sdp_allowed": (
        "backends.cuda.allow_fp16_bf16_reduction_math_sdp"
    ),
    "_C._get_overrideable_sdp_enabled": "_C._set_sdp_use_overrideable",
    "_C._get_fa3_sdp_enabled": "_C._set_sdp_use_fa3",
    "_C._get_sm_carveout_experimental": "_C._set_sm_carveout_experimental",
    "_C._get_cpu_allow_fp16_reduced_precision_reduction": (
        "_C._set_cpu_allow_fp16_reduced_precision_reduction"
    ),
    "_C._get_nnpack_enabled": "_C._set_nnpack_enabled",
    "backends.mha.get_fastpath_enabled": "backends.mha.set_fastpath_enabled",
    "cuda.tunable.is_enabled": "cuda.tunable.enable",
    "cuda.tunable.tuning_is_enabled": "cuda.tunable.tuning_enable",
}
"""What reads a switch, and what writes it."""

_PAIRS = {
    f"_C._get_cublas_allow_{dtype}_reduced_precision_reduction": (
        f"_C._set_cublas_allow_{dtype}_reduced_precision_reduction"
    )
    for dtype in ("fp16", "bf16")
}
"""The same for sums in 16 bits: within a part of a product, and of its parts."""

_LIBRARIES = tuple(
    f"backends.cuda.preferred_{name}_library" for name in ("linalg", "blas", "rocm_fa")
)
"""What reads a switch without an argument, and writes it with one."""


def _at(path: str) -> Any:
    """Return what has a name below torch."""
    return reduce(getattr, path.split("."), torch)


def _attribute(path: str) -> Switch:
    owner, name = path.rsplit(".", 1)
    return Switch(lambda: _at(path), lambda value: setattr(_at(owner), name, value))


def _function(reader: str, writer: str) -> Switch:
    return Switch(lambda: _at(reader)(), lambda value: _at(writer)(value))


def _pair(reader: str, writer: str) -> Switch:
    return Switch(lambda: [*_at(reader)()], lambda value: _at(writer)(*value))


def _library(path: str) -> Switch:
    return Switch(lambda: _at(path)().name, lambda value: _at(path)(value.lower()))


def _flushes_denormals() -> bool:
    tiny = torch.tensor(1e-40, dtype=torch.float32, device="cpu")
    return float(tiny * 0.5) == 0


def _choose_flash_attention(name: str | None) -> None:
    if name is None:
        torch.nn.attention.restore_flash_attention_impl()
    else:
        torch.nn.attention.activate_flash_attention_impl(name)


SWITCHES: dict[str, Switch] = {
    **{reader: _function(reader, writer) for reader, writer in _FUNCTIONS.items()},
    **{reader: _pair(reader, writer) for reader, writer in _PAIRS.items()},
    **{path: _library(path) for path in _LIBRARIES},
    "get_default_dtype": Switch(
        lambda: str(torch.get_default_dtype()).removeprefix("torch."),
        lambda name: torch.set_default_dtype(getattr(torch, name)),
    ),
    "set_flush_denormal": Switch(_flushes_denormals, torch.set_flush_denormal),
    "nn.attention.current_flash_attention_impl": Switch(
        lambda: torch.nn.attention.current_flash_attention_impl(), _choose_flash_attention
    ),
    READ_ONLY: Switch(lambda: _at(READ_ONLY)(), lambda value: None),
    **{path: _attribute(path) for path in _ATTRIBUTES},
}
"""All switches, in the order in which they are written."""


def read_switches() -> Switches:
    """Return the switches of this process, without those that its PyTorch has not."""
    found = {}
    for name, switch in SWITCHES.items():
        # Another release of PyTorch, or one built for other devices, lacks some.
        with suppress(AttributeError):
            found[name] = _read(switch)
    return found


def _read(switch: Switch) -> Any:
    try:
        return switch.read()
    except RuntimeError:
        return MIXED


@cache
def fresh_switches() -> Switches:
    """Return the switches of a process that has imported PyTorch alone, in the same environment.

    It takes as long as ``import torch``, the first time.

    Raises:
        RuntimeError: that process has failed; says with what.
    """
    command = [sys.executable, "-P", __file__]  # -P: or this folder's modules would be found first
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(
            f"PyTorch's own switches could not be read: {sys.executable} ended with status "
            f"{done.returncode}: {done.stderr[-2000:]}"
        )
    found: Switches = json.loads(done.stdout.splitlines()[-1])
    return found


def write_switches(wanted: Switches) -> dict[str, tuple[Any, Any]]:
    """Set this process's switches, but for `READ_ONLY`: all that can be set.

    Args:
        wanted: values by name.

    Returns:
        the values before and after, of those that had to be changed.

    Raises:
        RuntimeError: one could not be set; says which.
    """
    wanted = {name: value for name, value in wanted.items() if name != READ_ONLY}
    before = read_switches()
    for name, value in wanted.items():
        if _read(SWITCHES[name]) != value:
            with suppress(RuntimeError):  # it is found below, and the others are to be set
                SWITCHES[name].write(value)
    after = read_switches()
    for name, value in wanted.items():
        if after[name] != value:
            raise RuntimeError(f"torch.{name} is {after[name]!r}, and cannot be set to {value!r}.")
    return {name: (before[name], value) for name, value in wanted.items() if before[name] != value}


def use_fresh_switches() -> dict[str, tuple[Any, Any]]:
    """Set this process's switches to those of a fresh one; see `write_switches`.

    Raises:
        RuntimeError: see `fresh_switches` and `write_switches`.
    """
    return write_switches(fresh_switches())


@contextmanager
def with_fresh_switches() -> Iterator[None]:
    """Have the switches of a fresh process for a while, as `generate()` in one has them.

    Raises:
        RuntimeError: see `use_fresh_switches`.
    """
    before = read_switches()
    try:
        use_fresh_switches()
        yield
    finally:
        write_switches({name: value for name, value in before.items() if value != MIXED})


if __name__ == "__main__":
    print(json.dumps(read_switches()))
