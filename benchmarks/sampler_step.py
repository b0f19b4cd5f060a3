"""How long does the sampler take for one decode step: upstream's and hf_compat's?

    python -m benchmarks.sampler_step [--json FILE]

Both sides are what the engine runs: vLLM's ``InputBatch`` and ``Sampler``, and the same with the
requests and the sampler of hf_compat. Each gets the same logits and the same requests, whose
prompts and answers have ``--history`` tokens together when the timing starts. Only what the worker
does between logits and tokens is timed: the batch's metadata and the sampler.

The two are timed alternately in one process, so that a slow moment of the machine hits both.
HF's ``no_repeat_ngram_size`` has no counterpart upstream, so its time stands alone; compare it with
greedy search.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from tqdm.auto import tqdm
from transformers import GenerationConfig, LlamaConfig

from benchmarks.machine import environment, wait_for_gpu
from vllm import SamplingParams
from vllm.hf_compat.frontend import Frontend
from vllm.hf_compat.logits.sampler import HFSampler
from vllm.v1.sample.logits_processor import build_logitsprocs
from vllm.v1.sample.sampler import Sampler
from vllm.v1.worker.gpu_input_batch import CachedRequestState, InputBatch

EOS = 2
BLOCK_SIZE = 16
BAD_WORDS = [[17 * i + j for j in range(1 + i % 3)] for i in range(1, 11)]  # 10 of 1 to 3 tokens
BIASES = {100 + 31 * i: (-1.0) ** i * 2.5 for i in range(10)}
SAMPLE = {"do_sample": True, "top_k": 0}
NEVER = 1 << 20  # more new tokens than are timed


@dataclass(frozen=True)
class Case:
    """The same request in HF's terms and in upstream's.

    Attributes:
        hf: fields of ``GenerationConfig``.
        upstream: fields of ``SamplingParams``; None if it cannot say that.
        seeded: whether each request has a seed.
        varied: whether each request has a temperature of its own.
    """

    hf: dict[str, Any] = field(default_factory=dict)
    upstream: dict[str, Any] | None = field(default_factory=dict)
    seeded: bool = False
    varied: bool = False


CASES = {
    "greedy": Case({}, {"temperature": 0.0}),
    "sampling": Case(SAMPLE, {}),
    "sampling, seeded": Case(SAMPLE, {}, seeded=True),
    "temperature": Case({**SAMPLE, "temperature": 0.8}, {"temperature": 0.8}),
    "top_k": Case({**SAMPLE, "top_k": 50}, {"top_k": 50}),
    "top_p": Case({**SAMPLE, "top_p": 0.95}, {"top_p": 0.95}),
    "min_p": Case({**SAMPLE, "min_p": 0.05}, {"min_p": 0.05}),
    "repetition_penalty": Case(
        {"repetition_penalty": 1.2}, {"temperature": 0.0, "repetition_penalty": 1.2}
    ),
    "no_repeat_ngram_size": Case({"no_repeat_ngram_size": 3}, None),
    "bad words": Case({"bad_words_ids": BAD_WORDS}, {"temperature": 0.0, "bad_words": BAD_WORDS}),
    "min_new_tokens": Case({"min_new_tokens": NEVER}, {"temperature": 0.0, "min_tokens": NEVER}),
    "bias": Case(
        {"sequence_bias": [[[token], bias] for token, bias in BIASES.items()]},
        {"temperature": 0.0, "logit_bias": BIASES},
    ),
    "five together": Case(
        {
            "do_sample": True,
            "temperature": 0.8,
            "top_k": 50,
            "top_p": 0.95,
            "repetition_penalty": 1.2,
            "min_new_tokens": NEVER,
        },
        {
            "temperature": 0.8,
            "top_k": 50,
            "top_p": 0.95,
            "repetition_penalty": 1.2,
            "min_tokens": NEVER,
        },
    ),
}
CASES["five together, seeded"] = replace(CASES["five together"], seeded=True)
CASES["five together, varied"] = replace(CASES["five together"], varied=True)


@dataclass
class Result:
    """Times of one case: medians over all timed steps, and of the steps' ratios."""

    case: str
    batch: int
    vocab: int
    history: int
    steps: int
    upstream_us: float | None
    hf_compat_us: float
    ratio: float | None


# --- the requests --------------------------------------------------------------------------------
def of_request(case: Case, fields: dict[str, Any], number: int) -> dict[str, Any]:
    """The fields of one request of a case."""
    return fields | ({"temperature": 0.5 + number / 1000} if case.varied else {})


def upstream_params(case: Case, number: int, seed: int | None) -> SamplingParams:
    """What vLLM's frontend makes of ``SamplingParams``; bad words are given as tokens."""
    fields = of_request(case, case.upstream or {}, number)
    bad_words = fields.pop("bad_words", None)
    params = SamplingParams(max_tokens=None, seed=seed, **fields)
    params._bad_words_token_ids = bad_words
    params._all_stop_token_ids.add(EOS)
    return params


def hf_params(
    case: Case, number: int, seed: int | None, frontend: Frontend, prompt_len: int
) -> SamplingParams:
    """What hf_compat's frontend makes of a ``GenerationConfig``."""
    fields = of_request(case, case.hf, number)
    config = GenerationConfig(eos_token_id=EOS, max_new_tokens=64, seed=seed, **fields)
    params = frontend.to_sampling_params(config)
    frontend.finish(params, prompt_len)
    return params


def make_request(
    number: int, tokens: list[int], params: SamplingParams, seed: int | None
) -> CachedRequestState:
    """A request whose answer is half of `tokens`; upstream's draws come from its generator."""
    half = len(tokens) // 2
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    return CachedRequestState(
        req_id=str(number),
        prompt_token_ids=tokens[:half],
        mm_features=[],
        sampling_params=params,
        generator=generator if params.seed is not None else None,
        block_ids=([],),
        num_computed_tokens=0,
        output_token_ids=tokens[half:],
    )


# --- the worker ----------------------------------------------------------------------------------
class Side:
    """As much of a worker as its sampler needs, in the middle of some answers.

    Args:
        requests: of the batch.
        vocab: width of the logits.
        max_len: the longest sequence.
        device: where the logits are.
        hf_compat: which sampler.
    """

    def __init__(
        self,
        requests: list[CachedRequestState],
        vocab: int,
        max_len: int,
        device: torch.device,
        *,
        hf_compat: bool,
    ) -> None:
        self.requests = requests
        self.batch = _input_batch(len(requests), vocab, max_len, device)
        for request in requests:
            self.batch.add_request(request)
        upstream = Sampler()
        self.sampler = upstream
        if hf_compat:
            runner: Any = SimpleNamespace(
                max_num_reqs=len(requests),
                max_model_len=max_len,
                device=device,
                model_config=SimpleNamespace(
                    get_vocab_size=lambda: vocab,
                    hf_config=LlamaConfig(vocab_size=vocab),
                    dtype=torch.float32,
                ),
                input_batch=self.batch,
                requests={request.req_id: request for request in requests},
                discard_request_mask=SimpleNamespace(np=np.zeros(len(requests), dtype=bool)),
            )
            self.sampler = HFSampler(runner, upstream)

    def step(self, logits: torch.Tensor) -> torch.Tensor:
        """Choose one token a request, int32 [num_requests], as the worker does in a step."""
        self.batch.refresh_metadata()
        output = self.sampler(logits, self.batch.sampling_metadata)
        return output.sampled_token_ids.view(-1)

    def append(self, token_ids: list[int]) -> None:
        """Give each request its token, as the worker does after a step."""
        for request, token in zip(self.requests, token_ids, strict=True):
            request.output_token_ids.append(token)


def _input_batch(size: int, vocab: int, max_len: int, device: torch.device) -> InputBatch:
    config: Any = SimpleNamespace(
        scheduler_config=SimpleNamespace(max_num_seqs=size), speculative_config=None
    )
    return InputBatch(
        max_num_reqs=size,
        max_model_len=max_len,
        max_num_batched_tokens=max_len,
        device=device,
        vocab_size=vocab,
        block_sizes=[BLOCK_SIZE],
        max_num_blocks_per_req=[max_len // BLOCK_SIZE + 1],
        logitsprocs=build_logitsprocs(config, device, False, False),
    )


# --- the timing ----------------------------------------------------------------------------------
def make_sides(
    case: Case, size: int, vocab: int, history: int, max_len: int, device: torch.device
) -> dict[str, Side]:
    """Both sides with the same requests, or hf_compat alone."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(3, vocab, (size, history)).tolist()
    seeds = [number if case.seeded else None for number in range(size)]
    frontend = Frontend(
        GenerationConfig(), LlamaConfig(vocab_size=vocab), max_model_len=max_len, vocab_size=vocab
    )
    params = {
        "hf_compat": [hf_params(case, *each, frontend, history // 2) for each in enumerate(seeds)]
    }
    if case.upstream is not None:
        params["upstream"] = [upstream_params(case, *each) for each in enumerate(seeds)]
    return {
        name: Side(
            [
                make_request(number, list(tokens[number]), each, seeds[number])
                for number, each in enumerate(of_side)
            ],
            vocab,
            max_len,
            device,
            hf_compat=name == "hf_compat",
        )
        for name, of_side in params.items()
    }


def time_once(side: Side, logits: torch.Tensor) -> float:
    """Seconds from logits to tokens, waiting for the GPU on both ends."""
    wait_for_gpu(logits)
    start = time.perf_counter()
    token_ids = side.step(logits)
    wait_for_gpu(logits)
    seconds = time.perf_counter() - start
    side.append(token_ids.tolist())
    return seconds


def measure(name: str, size: int, vocab: int, arguments: argparse.Namespace) -> Result:
    """Time the steps of both sides, alternately, on the same logits."""
    device = torch.device(arguments.device)
    warm_up = 2
    steps = arguments.steps
    max_len = arguments.history + 64 + steps + warm_up
    sides = make_sides(CASES[name], size, vocab, arguments.history, max_len, device)
    times: dict[str, list[float]] = {side: [] for side in sides}
    generator = torch.Generator().manual_seed(0)
    logits = (torch.randn(size, vocab, generator=generator) * 3).to(device)
    scratch = torch.empty_like(logits)
    for number in range(steps + warm_up):
        fresh = logits.roll(number, dims=-1)
        for name_of_side, side in sides.items():
            seconds = time_once(side, scratch.copy_(fresh))
            if number >= warm_up:
                times[name_of_side].append(seconds)
    medians = {side: statistics.median(values) * 1e6 for side, values in times.items()}
    ratio = None
    if "upstream" in times:
        pairs = zip(times["hf_compat"], times["upstream"], strict=True)
        ratio = statistics.median(ours / theirs for ours, theirs in pairs)
    return Result(
        name,
        size,
        vocab,
        arguments.history,
        steps,
        medians.get("upstream"),
        medians["hf_compat"],
        ratio,
    )


def show(results: list[Result], title: str) -> None:
    """Print the results of one vocabulary and batch as a table, in milliseconds."""
    table = Table("case", "upstream, ms", "hf_compat, ms", "hf_compat/upstream", title=title)
    for result in results:
        table.add_row(
            result.case,
            "" if result.upstream_us is None else f"{result.upstream_us / 1e3:,.2f}",
            f"{result.hf_compat_us / 1e3:,.2f}",
            "" if result.ratio is None else f"{result.ratio:.2f}",
        )
    Console().print(table)


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 32, 256])
    parser.add_argument("--vocab", type=int, nargs="+", default=[32_000, 128_256])
    parser.add_argument("--case", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--history", type=int, default=512)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    results: list[Result] = []
    for vocab, size in itertools.product(arguments.vocab, arguments.batch):
        bar = tqdm(arguments.case, desc=f"{vocab} tokens, batch {size}", leave=False)
        of_size = [measure(name, size, vocab, arguments) for name in bar]
        title = (
            f"one step of the sampler: {vocab} tokens, batch {size}, history {arguments.history}, "
            f"{arguments.device}"
        )
        show(of_size, title)
        results += of_size
    if arguments.json:
        report = {
            "environment": environment(torch.device(arguments.device)),
            "results": [asdict(result) for result in results],
        }
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
