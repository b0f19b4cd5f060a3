"""How long does the repetition penalty of one decode step take: upstream's and the fork's?

Both sides get what the engine gives them at a step: logits [batch, vocabulary] of requests that
have seen ``history`` tokens, half prompt and half output, and one new token a request.

* upstream: ``vllm.v1.sample.ops.penalties.apply_all_penalties`` as the sampler calls it, which
  turns the lists of output tokens into a tensor and counts tokens anew at every step;
* fork: ``vllm.fork_kernels``, which marks the new token of each request and penalizes what is
  marked.

The two are timed alternately in one process, so that a slow moment of the machine hits both. With
only the repetition penalty asked for, both give the same logits up to the rounding of upstream's
division; that is checked first. Run it in the environment in which the distribution is installed:

    python -m benchmarks.penalty_kernel --json penalty_kernel.json
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.machine import environment, wait_for_gpu
from vllm import fork_kernels
from vllm.fork_kernels import library
from vllm.v1.sample.ops.penalties import apply_all_penalties

PENALTY = 1.1


@dataclass
class Case:
    """One step's inputs, in the form that each side keeps between steps."""

    logits: torch.Tensor  # float32 [batch, vocab]
    penalties: torch.Tensor  # float32 [batch], as upstream takes them
    numbers: torch.Tensor  # the same, float64, as the fork does
    prompt_token_ids: torch.Tensor  # int64 [batch, history / 2]
    output_token_ids: list[list[int]]  # batch lists of history / 2
    zeros: torch.Tensor  # float32 [batch]: no presence or frequency penalty
    seen: torch.Tensor  # int32 [batch, num_mask_words(vocab)]
    slots: torch.Tensor  # int32 [batch]
    new_token_ids: torch.Tensor  # int64 [batch]

    def upstream_step(self, logits: torch.Tensor) -> torch.Tensor:
        """The call of ``vllm/v1/sample/sampler.py``; penalties in their order of arguments."""
        return apply_all_penalties(
            logits,
            self.prompt_token_ids,
            self.zeros,  # presence
            self.zeros,  # frequency
            self.penalties,
            self.output_token_ids,
        )

    def fork_step(self, logits: torch.Tensor) -> torch.Tensor:
        """One new token a request, then the penalty of all that were seen."""
        fork_kernels.mark_seen_tokens(self.seen, self.slots, self.new_token_ids)
        fork_kernels.apply_repetition_penalty(logits, self.seen, self.slots, self.numbers)
        return logits


@dataclass
class Result:
    """Times of one batch size: medians over all timed steps, in microseconds."""

    batch: int
    vocab: int
    history: int
    steps: int
    upstream_us: float
    fork_us: float
    ratio: float


def make_case(batch: int, vocab: int, history: int, device: torch.device, seed: int = 0) -> Case:
    """Random logits and tokens; the last output token is the one the step marks."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, vocab, (batch, history), generator=generator)
    prompt, output = tokens.split([history // 2, history - history // 2], dim=1)
    slots = torch.arange(batch, dtype=torch.int32)
    seen = torch.zeros(batch, fork_kernels.num_mask_words(vocab), dtype=torch.int32, device=device)
    before = tokens[:, :-1]
    fork_kernels.mark_seen_tokens(
        seen,
        slots.repeat_interleave(before.shape[1]).to(device),
        before.flatten().to(device),
    )
    return Case(
        logits=torch.randn(batch, vocab, generator=generator).to(device),
        penalties=torch.full((batch,), PENALTY, device=device),
        numbers=torch.full((batch,), PENALTY, dtype=torch.float64, device=device),
        prompt_token_ids=prompt.to(device),
        output_token_ids=output.tolist(),
        zeros=torch.zeros(batch, device=device),
        seen=seen,
        slots=slots.to(device),
        new_token_ids=tokens[:, -1].contiguous().to(device),
    )


def check_agreement(case: Case) -> None:
    """Both sides compute the same step (upstream multiplies by 1 / penalty: one rounding more)."""
    upstream = case.upstream_step(case.logits.clone())
    fork = case.fork_step(case.logits.clone())
    torch.testing.assert_close(fork, upstream, rtol=1e-6, atol=0)
    if torch.equal(fork, case.logits):
        raise AssertionError("no logit was penalized")


def time_once(step: Callable[[torch.Tensor], torch.Tensor], logits: torch.Tensor) -> float:
    """Seconds from call to result, waiting for the GPU on both ends."""
    wait_for_gpu(logits)
    start = time.perf_counter()
    step(logits)
    wait_for_gpu(logits)
    return time.perf_counter() - start


def measure(case: Case, steps: int, history: int) -> Result:
    """Time ``steps`` steps of each side, alternately, on fresh logits."""
    sides = {"upstream": case.upstream_step, "fork": case.fork_step}
    times: dict[str, list[float]] = {name: [] for name in sides}
    scratch = torch.empty_like(case.logits)
    for number in range(steps + 2):
        for name, step in sides.items():
            scratch.copy_(case.logits)
            seconds = time_once(step, scratch)
            if number >= 2:  # the first ones warm up
                times[name].append(seconds)
    upstream, fork = (statistics.median(times[name]) * 1e6 for name in sides)
    batch, vocab = case.logits.shape
    return Result(batch, vocab, history, steps, upstream, fork, upstream / fork)


def show(results: list[Result], title: str) -> None:
    """Print the results as a table."""
    table = Table("batch", "upstream, us", "fork, us", "times faster", title=title)
    for result in results:
        table.add_row(
            str(result.batch),
            f"{result.upstream_us:,.0f}",
            f"{result.fork_us:,.0f}",
            f"{result.ratio:.1f}",
        )
    Console().print(table)


def kernel_environment(device: torch.device) -> dict[str, object]:
    """What the numbers depend on, the kernel's own build included."""
    return {**environment(device), "cpu_isa": library.cpu_isa()}


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 32, 64, 256])
    parser.add_argument("--vocab", type=int, default=128256)
    parser.add_argument("--history", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    device = torch.device(arguments.device)
    results = []
    for batch in arguments.batch:
        case = make_case(batch, arguments.vocab, arguments.history, device)
        check_agreement(case)
        results.append(measure(case, arguments.steps, arguments.history))
    title = (
        f"repetition penalty, one step: {arguments.vocab} tokens, history {arguments.history}, "
        f"{device.type}"
    )
    show(results, title)
    if arguments.json:
        report = {
            "environment": kernel_environment(device),
            "results": [asdict(r) for r in results],
        }
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
