"""Compiles the Triton kernels of a start of an engine for an H100, where there is no GPU.

    python -m tools.triton_for_hopper

Triton gets a driver that is asked for sm_90, loads nothing and launches nothing, so that vLLM's own
functions choose the kernels and their constants. Those are Triton's attention and its cache, the
slots of tokens, zeroed blocks, top_k and top_p, and the products of upstream's batch-invariant
mode. Printed is a line for each kernel: its shared memory, and how long it took to compile.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "fork"))

import faked_gpu  # noqa: F401  # isort: skip  # before anything asks for the platform
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from vllm.model_executor.determinism import batch_invariant
from vllm.v1.attention.ops.triton_reshape_and_cache_flash import (
    triton_reshape_and_cache_flash,
)
from vllm.v1.attention.ops.triton_unified_attention import unified_attention
from vllm.v1.sample.ops.topk_topp_triton import apply_top_k_top_p_triton
from vllm.v1.worker.block_table import BlockTable

SHARED_BYTES = 232_448
"""That a block of threads may have on compute capability 9.0 (CUDA's programming guide)."""

HEADS, KV_HEADS, SIZE, BLOCK = 32, 8, 128, 16
"""Of Llama-3.1-8B."""


class Utils:
    """What Triton asks of a device."""

    compiled: list[str]

    def __init__(self) -> None:
        self.compiled = []

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": SHARED_BYTES, "multiprocessor_count": 132, "warpSize": 32}

    def load_binary(
        self, name: str, kernel: bytes, shared: int, device: int
    ) -> tuple[None, None, int, int, int]:
        self.compiled.append(f"{name}: {len(kernel):,} bytes, {shared:,} of shared memory")
        return None, None, 0, 0, 1024


class Hopper:
    """A driver for an H100 that is not there."""

    def __init__(self) -> None:
        self.utils = Utils()

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def launcher_cls(self, source: Any, metadata: Any) -> Callable[..., None]:
        return lambda *_: None


def attend(lengths: list[int], queries: list[int], segments: int) -> None:
    """Attention as `TritonAttentionImpl` asks for it."""
    tokens = sum(queries)
    query = torch.zeros(tokens, HEADS, SIZE, dtype=torch.bfloat16)
    cache = torch.zeros(64, BLOCK, KV_HEADS, SIZE, dtype=torch.bfloat16)
    parts = torch.zeros(len(lengths), HEADS, segments, SIZE)
    scale = torch.ones(len(lengths), KV_HEADS)
    unified_attention(
        q=query, k=cache, v=cache, out=torch.empty_like(query),
        cu_seqlens_q=torch.tensor([0, *queries], dtype=torch.int32).cumsum(0).int(),
        max_seqlen_q=max(queries), seqused_k=torch.tensor(lengths, dtype=torch.int32),
        max_seqlen_k=max(lengths), softmax_scale=0.1, causal=True, window_size=(-1, -1),
        block_table=torch.zeros(len(lengths), 64, dtype=torch.int32), softcap=0.0,
        q_descale=None, k_descale=scale, v_descale=scale, seq_threshold_3D=128,
        num_par_softmax_segments=segments, softmax_segm_output=parts,
        softmax_segm_max=parts[..., 0].contiguous(), softmax_segm_expsum=parts[..., 0].contiguous(),
    )  # fmt: skip


def append() -> None:
    """Keys and values on their way into the cache."""
    keys = torch.zeros(7, KV_HEADS, SIZE, dtype=torch.bfloat16)
    cache = torch.zeros(64, BLOCK, KV_HEADS, SIZE, dtype=torch.bfloat16)
    one = torch.ones(1)
    triton_reshape_and_cache_flash(keys, keys, cache, cache, torch.arange(7), "auto", one, one)


def map_slots() -> None:
    """The slots of a step's tokens."""
    table = BlockTable(
        block_size=BLOCK, max_num_reqs=64, max_num_blocks_per_req=144, max_num_batched_tokens=2048,
        pin_memory=False, device=torch.device("cpu"), cp_kv_cache_interleave_size=1,
    )  # fmt: skip
    table.compute_slot_mapping(2, torch.tensor([0, 3, 7], dtype=torch.int32), torch.arange(7))


def filter_logits() -> None:
    """top_k and top_p of upstream's sampler."""
    logits = torch.zeros(8, 128256)
    k = torch.full((8,), 50, dtype=torch.int32)
    for top_k, top_p in ((k, None), (None, torch.full((8,), 0.9)), (k, torch.full((8,), 0.9))):
        apply_top_k_top_p_triton(logits, top_k, top_p)


def multiply() -> None:
    """The operations of VLLM_BATCH_INVARIANT=1 that a Llama has."""
    weight = torch.zeros(4096, 1024, dtype=torch.bfloat16)
    for rows in (1, 64, 2048):
        batch_invariant.matmul_persistent(
            torch.zeros(rows, 1024, dtype=torch.bfloat16), weight.t().contiguous()
        )
    batch_invariant.log_softmax(torch.zeros(4, 128256))
    batch_invariant.rms_norm_batch_invariant(weight, weight[0])


STARTED: dict[str, Callable[[], None]] = {
    "attention in decoding": lambda: attend([1100, 17], [1, 1], 16),
    "attention in prompts": lambda: attend([40, 300], [40, 300], 16),
    "the cache": append,
    "slots": map_slots,
    "top_k and top_p": filter_logits,
    "batch-invariant operations": multiply,
}


def main() -> None:
    hopper = Hopper()
    driver.set_active(hopper)
    cuda: Any = torch.cuda
    cuda.get_device_properties = lambda *_: SimpleNamespace(
        shared_memory_per_block_optin=SHARED_BYTES, multi_processor_count=132
    )
    cuda.get_device_capability = lambda *_: (9, 0)
    failed = []
    for what, run in STARTED.items():
        begin = time.perf_counter()
        try:
            run()
        except Exception as error:  # the others are to be tried
            failed.append(what)
            print(f"{what}: {type(error).__name__}: {error}", flush=True)
        seconds = time.perf_counter() - begin
        for line in hopper.utils.compiled:
            print(f"{what}: {line}", flush=True)
        print(f"{what}: {seconds:.1f} s", flush=True)
        hopper.utils.compiled.clear()
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
