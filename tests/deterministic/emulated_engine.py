"""Prints what an engine answers: with a library, its portable operations are emulated CUDA kernels.

    python -m tests.deterministic.emulated_engine [LIBRARY] [--captured] [--update FOLDER]
        [--launches] [--length TOKENS]

The engine's tensors stay on the CPU; --captured lets steps of decoding be replayed. Before it
answers, it takes the step without requests whose memory vLLM measures on GPUs. It answers again
with the weights of --update, if there are some. --launches counts those of a layer in each step;
sequences may have --length tokens.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"  # a function goes to the worker

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch

from tests.deterministic.captured_steps import CapturedSteps
from tests.deterministic.launches import LayerLaunches
from tests.emulated_gpu.launches import load
from tests.emulated_gpu.library import EMULATED, NAMESPACE
from tests.engines import MODEL
from vllm import LLM, SamplingParams

PROMPTS = [[5, 80, 300, 7], [9, 1200, 33], [11, *range(40, 57)]]


def answers(llm: LLM) -> list[tuple[list[int], str]]:
    """Return tokens, and a digest of the log-probabilities, of a greedy and a drawn answer each."""
    params = [
        SamplingParams(max_tokens=4, logprobs=2, **choice, ignore_eos=True)
        for choice in ({"temperature": 0.0}, {"temperature": 0.9, "seed": 4, "top_p": 0.9})
    ]
    given = [{"prompt_token_ids": ids} for ids in PROMPTS for _ in params]
    outputs = llm.generate(given, params * len(PROMPTS), use_tqdm=False)
    return [(list(one.outputs[0].token_ids), _digest(one.outputs[0].logprobs)) for one in outputs]


def _digest(logprobs: Any) -> str:
    values = [
        (token, found.logprob.hex())
        for position in logprobs
        for token, found in sorted(position.items())
    ]
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()


def start(model: str, length: int) -> LLM:
    """Return an engine of a model, in deterministic mode, for sequences of some length."""
    return LLM(
        model,
        dtype="bfloat16",
        deterministic=True,
        max_model_len=length,
        max_num_batched_tokens=16,  # the longest prompt comes in two chunks
        max_num_seqs=8,
        kv_cache_memory_bytes=1 << 24,
    )


def measure(worker: Any) -> list[int]:
    """Return how many rows and tokens a step without requests samples."""
    _, hidden_states = worker.model_runner._dummy_run(16, is_profile=True)
    return list(worker.model_runner._dummy_sampler_run(hidden_states).sampled_token_ids.shape)


@contextmanager
def emulated_operations(path: str) -> Iterator[set[str]]:
    """Compute the fork's operations with a library, and yield the names of those that were."""
    load(path)
    called: set[str] = set()

    def call(name: str, *arguments: Any) -> Any:
        called.add(name)
        return getattr(getattr(torch.ops, NAMESPACE), name).default(*arguments)

    with torch.library._scoped_library("vllm_fork", "IMPL") as library:
        for name in EMULATED:
            library.impl(name, partial(call, name), "CPU", allow_override=True)
        yield called


def capture(worker: Any) -> None:
    """Let steps be replayed from now on."""
    worker.captured = CapturedSteps(worker.model_runner.get_model())


def num_replayed(worker: Any) -> int:
    """Return how many steps were."""
    count: int = worker.captured.replayed
    return count


def count_launches(worker: Any, library: str) -> None:
    """Count the launches of the second layer from now on."""
    worker.launches = LayerLaunches(worker.model_runner.get_model().model.layers[1], library)


def counted_launches(worker: Any) -> list[tuple[int, list[str]]]:
    """Return the tokens of each step, and what was launched."""
    steps: list[tuple[int, list[str]]] = worker.launches.steps
    return steps


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("library", nargs="?")
    parser.add_argument("--model", default=str(MODEL))
    parser.add_argument("--captured", action="store_true")
    parser.add_argument("--update")
    parser.add_argument("--launches", action="store_true")
    parser.add_argument("--length", type=int, default=64)
    args = parser.parse_args()
    operations: Any = emulated_operations(args.library) if args.library else nullcontext(())
    with operations as called:
        llm = start(args.model, args.length)
        found: dict[str, Any] = {"rows": llm.collective_rpc(measure)}
        if args.captured:
            llm.collective_rpc(capture)
            answers(llm)
        if args.launches:
            llm.collective_rpc(count_launches, args=(args.library,))
        found["answers"] = answers(llm)
        if args.launches:
            found["launches"] = llm.collective_rpc(counted_launches)
        if args.update:
            llm.collective_rpc("reload_weights", kwargs={"weights_path": args.update})
            found["updated"] = answers(llm)
        if args.captured:
            found["replayed"] = llm.collective_rpc(num_replayed)
        print(json.dumps(found | {"emulated": sorted(called)}))


if __name__ == "__main__":
    main()
