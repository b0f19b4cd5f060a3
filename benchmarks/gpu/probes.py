"""What a GPU has to be able to do before anything is measured, each tried in a second.

    python -m benchmarks.gpu.probes

Printed is JSON: the machine, PyTorch's switches as a process has them that never imported vLLM, and
what became of each probe. The status is 0, or 2 if kernels that begin early go wrong, so that the
others run with ``VLLM_FORK_CUDA_DEPENDENT_LAUNCH=0``, or 1 if anything else does. What is tried is
printed before it is: a GPU that hangs says nothing any more. On a Hopper and later GPUs kernels
have to begin early, or nothing of that would be tried.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import torch

LAUNCHES = "kernels that begin early"
EARLY = "kernels that begin early, in a CUDA graph"


def machine() -> dict[str, Any]:
    """Return what the numbers depend on, before vLLM is imported."""
    cuda = torch.backends.cuda
    found: dict[str, Any] = {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "cudnn attention": cuda.cudnn_sdp_enabled(),
        "flash attention": cuda.flash_sdp_enabled(),
        "bf16 reduction": cuda.matmul.allow_bf16_reduced_precision_reduction,
    }
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        found |= {
            "gpu": properties.name,
            "capability": f"{properties.major}.{properties.minor}",
            "multiprocessors": properties.multi_processor_count,
            "gigabytes": round(properties.total_memory / 2**30, 1),
        }
    return found


def captured(compute: Callable[[], torch.Tensor]) -> torch.Tensor:
    """Return what a CUDA graph of a function computes when it is replayed."""
    beside = torch.cuda.Stream()
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):
        compute()  # what is only done at first is not to be captured
    beside.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = compute()
    result.zero_()
    graph.replay()
    return result.cpu()


def weak_reference() -> bool:
    """Whether a tensor that does not keep its memory can be made while a graph is captured."""
    from vllm.fork.source_kernels.operators import weak_ref_tensor

    x = torch.arange(8.0, device="cuda")
    return captured(lambda: weak_ref_tensor(x + 1)).tolist() == [1.0 + i for i in range(8)]


def early_kernels() -> bool:
    """Whether a norm and the product that takes its digits have their bits in a graph."""
    from vllm.deterministic.self_check import Numbers
    from vllm.fork_kernels.portable.norm import portable_rms_norm
    from vllm.fork_kernels.portable.product import portable_product

    def on(device: str) -> Callable[[], torch.Tensor]:
        numbers = Numbers(device)
        weight, x = numbers.weight(1000, 4096, salt=1), numbers(5, 4096, salt=2)
        return lambda: portable_product(portable_rms_norm(x, consumer=weight), weight)

    return torch.equal(captured(on("cuda")), on("cpu")())


def launches() -> str:
    """Say whether kernels begin early, and if not, why."""
    from vllm.fork_kernels.dependent_launches import dependent_launches

    try:
        return dependent_launches("cuda")
    except Exception as error:  # the probes are to be tried
        return f"{type(error).__name__}: {error}"


def triton() -> bool:
    """Whether Triton can compile its driver's C file (gcc, Python.h) and load it."""
    from triton.runtime import driver

    return bool(driver.active.utils) and driver.active.get_current_target().backend == "cuda"


PROBES: dict[str, Callable[[], bool]] = {
    "a tensor that keeps no memory, in a CUDA graph": weak_reference,
    "Triton": triton,
    EARLY: early_kernels,
}


def outcome(probe: Callable[[], bool]) -> str:
    """Return "works", or what went wrong."""
    try:
        return "works" if probe() else "other numbers"
    except Exception as error:  # the others are to be tried
        return f"{type(error).__name__}: {error}"


def main() -> None:
    found = machine() | {LAUNCHES: launches()}
    for name, probe in PROBES.items():
        print(json.dumps({**found, "during": name}), flush=True)
        found[name] = outcome(probe)
    print(json.dumps(found), flush=True)
    wrong = [name for name in PROBES if found[name] != "works"]
    is_able = torch.cuda.is_available() and torch.cuda.get_device_capability() >= (9, 0)
    is_in_turn = is_able and found[LAUNCHES] != "on"
    sys.exit(2 if EARLY in wrong else 1 if wrong or is_in_turn else 0)


if __name__ == "__main__":
    main()
