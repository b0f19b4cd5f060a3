"""Digests of the portable operations' results on inputs that are made of integers.

    python -m tests.kernels.portable_digests [--device DEVICE] [--threads N] [--flush-subnormals]

prints them as JSON. portable_digests.json holds those that every machine must give; it changes only
with the specification.
"""

import argparse
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from tests.kernels.attention.portable_attention_cases import attend, make_case
from tests.kernels.portable_cases import DTYPES, bits, every_number, numbers
from tests.kernels.states.states_cases import LAYERS
from vllm.fork_kernels.portable.functions import Function, portable_gated, portable_map
from vllm.fork_kernels.portable.logits import portable_argmax, portable_log_softmax, portable_top_k
from vllm.fork_kernels.portable.norm import portable_layer_norm, portable_rms_norm
from vllm.fork_kernels.portable.rotary import portable_rotate, rotary_frequencies, rotary_table
from vllm.fork_kernels.portable.sampling import portable_draw, portable_filter
from vllm.fork_kernels.portable.states import portable_gated_rms_norm

EXPECTED = Path(__file__).with_suffix(".json")

Results = Iterator[tuple[str, torch.Tensor]]


def function_results(device: str) -> Results:
    for dtype in DTYPES:
        x = every_number(dtype).to(device)
        for function in Function:
            yield f"{function} {dtype}", portable_map(x, function)
    x = numbers(7, 3000, seed=1, dtype=torch.bfloat16, scale=16.0).to(device)
    yield "gated", portable_gated(x, Function.SILU)


def norm_results(device: str) -> Results:
    for dtype in DTYPES:
        for size in (16, 1000, 4096):
            x, residual = (
                numbers(9, size, seed=s, dtype=dtype, scale=8.0).to(device) for s in (2, 3)
            )
            weight, bias = (numbers(size, seed=s, dtype=dtype).to(device) for s in (4, 5))
            tiny = numbers(9, size, seed=6, scale=2.0**-66).to(device)
            yield f"rms_norm {dtype} {size}", portable_rms_norm(x, weight, residual=residual)
            yield f"residual {dtype} {size}", residual
            yield f"layer_norm {dtype} {size}", portable_layer_norm(x, weight, bias)
            yield f"subnormal squares {dtype} {size}", portable_rms_norm(tiny, weight, 0.0)


def rotary_results(device: str) -> Results:
    table = rotary_table(rotary_frequencies(96, 10000.0).to(device), 5000, 1.25)
    yield "table", table
    for dtype in DTYPES:
        for is_interleaved in (False, True):
            x = numbers(6, 3, 128, seed=7, dtype=dtype, scale=4.0).to(device)
            positions = torch.tensor([0, 1, 77, 1000, 4095, 4999], device=device)
            portable_rotate(x, positions, table, is_interleaved=is_interleaved)
            yield f"rotation {dtype} {is_interleaved}", x


def attention_results(device: str) -> Results:
    for dtype in DTYPES:
        yield f"attention {dtype}", attend(make_case(200, dtype=dtype, device=device), 77, 32)
    for heads, kv_heads, size in ((2, 2, 128), (5, 1, 80), (9, 3, 256), (4, 4, 96)):
        case = make_case(150, heads, kv_heads, size, seed=heads, dtype=torch.float32, device=device)
        yield f"attention {heads} {kv_heads} {size}", attend(case)
    sinks = torch.tensor([2.0, -30.0, 40.0, 0.0], device=device)
    slopes = torch.tensor([0.5, 0.25, 0.125, 0.0], device=device)
    # Rounded to 16 bits, most of what may go wrong between blocks would not show.
    variant: dict[str, Any] = {"window": 90, "soft_cap": 20.0, "slopes": slopes, "sinks": sinks}
    case = make_case(250, dtype=torch.float32, device=device, **variant)
    yield "attention with everything", attend(case)
    case = make_case(1100, heads=2, kv_heads=1, dtype=torch.float32, device=device)
    yield "attention over superblocks", attend(case)


def vocabulary_results(device: str) -> Results:
    for dtype in DTYPES:
        yield (
            f"log_softmax {dtype}",
            portable_log_softmax(numbers(3, 50001, seed=8, dtype=dtype, scale=32.0).to(device)),
        )
    logits = numbers(6, 50001, seed=9, dtype=torch.bfloat16, scale=16.0).to(device)
    yield "argmax", portable_argmax(logits)
    for i, result in enumerate(portable_top_k(logits, 1000)):
        yield f"top_k {i}", result
    temperature = torch.tensor([1.0, 0.5, 0.0, 2.0, 0.9, 1.0], device=device)
    top_p = torch.tensor([1.0, 0.9, 0.5, 0.99, 1.0, 0.3], device=device)
    min_p = torch.tensor([0.0, 0.0, 0.1, 0.0, 0.01, 0.0], device=device)
    top_k = torch.tensor([0, 100, 5, 0, 2000, 60000], dtype=torch.int32, device=device)
    left = portable_filter(logits, temperature, top_k, top_p, min_p)
    yield "filter", left
    rows = torch.arange(6, device=device)
    seeds, positions = rows * 2**40, rows + 2**31
    yield "draw of all", portable_draw(logits, seeds, positions)
    yield "draw", portable_draw(left, seeds, positions)


def state_results(device: str) -> Results:
    if device != "cpu":  # the only one that has these operators
        return
    sizes: dict[str, dict[str, int]] = {
        "convolution": {"channels": 700},
        "mamba2": {"columns": 80, "rows": 128},
        "delta rule": {"columns": 128, "rows": 128},
    }
    for name, make in LAYERS.items():
        for dtype in DTYPES:
            layer = make(90, dtype=dtype, **sizes[name])
            states = numbers(4, *layer.state, seed=10, dtype=layer.state_dtype)
            result = layer.run([40, 1, 49], states, [2, 0, 3], [False, True, True])
            yield f"{name} {dtype}", result
            yield f"states of {name} {dtype}", states
    x, gate = (numbers(7, 600, seed=s, dtype=torch.bfloat16, scale=8.0) for s in (11, 12))
    weight = numbers(600, seed=13)
    yield "gated norm", portable_gated_rms_norm(x, gate, weight, group_size=150)
    yield "norm before gate", portable_gated_rms_norm(x, gate, weight, norm_before_gate=True)


def digests(device: str = "cpu") -> dict[str, str]:
    parts = (
        *(function_results, norm_results, rotary_results, attention_results, vocabulary_results),
        state_results,
    )
    return {
        name: hashlib.sha256(bits(result).cpu().numpy().tobytes()).hexdigest()
        for part in parts
        for name, result in part(device)
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--flush-subnormals", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.set_flush_denormal(arguments.flush_subnormals)
    print(json.dumps(digests(arguments.device), indent=1))


if __name__ == "__main__":
    main()
