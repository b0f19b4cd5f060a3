"""How far trainer and engine are apart in reinforcement learning, with the same bits and without.

Runs ``examples/grpo.py`` both ways and draws log(trainer / engine) of all sampled tokens.

python -m benchmarks.log_ratios [--steps 50] [--output FOLDER]
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch

sys.path.append("examples")  # of what grpo.py imports from beside it
from examples import grpo


def measure(flags: list[str], steps: int) -> tuple[list[float], torch.Tensor]:
    """Return the mean reward of each step, and the log-ratios of all tokens of all steps."""
    rewards, found = [], []
    for _, reward, log_ratios in grpo.train(grpo.parse([*flags, "--steps", str(steps)])):
        rewards.append(reward)
        found.append(log_ratios)
    return rewards, torch.cat(found)


def draw(measured: dict[str, tuple[list[float], torch.Tensor]], file: Path) -> None:
    """Write a picture of what `measure` has found, by name: how many tokens are how far apart, and
    how the rewards grow.
    """
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "log-ratios"
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 3.6))
    limit = max(values.abs().max().item() for _, values in measured.values())
    for name, (rewards, values) in measured.items():
        left.hist(values.numpy(), bins=81, range=(-limit, limit), log=True, alpha=0.6, label=name)
        right.plot(range(1, len(rewards) + 1), rewards, label=name)
    left.set_xlabel("log(trainer / engine) of a sampled token")
    left.set_ylabel("tokens")
    right.set_xlabel("step")
    right.set_ylabel("mean reward")
    left.legend()
    figure.tight_layout()
    figure.savefig(file, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--output", type=Path, default=Path("build/log-ratios"))
    arguments = parser.parse_args()
    sides = {"the same bits": [], "without flags": ["--plain"]}
    measured = {name: measure(flags, arguments.steps) for name, flags in sides.items()}
    arguments.output.mkdir(parents=True, exist_ok=True)
    summary = {}
    for name, (rewards, values) in measured.items():
        summary[name] = {
            "tokens": len(values),
            "largest": values.abs().max().item(),
            "mean": values.abs().mean().item(),
            "exactly 0": (values == 0).float().mean().item(),
            "rewards": rewards,
        }
        print(name, {key: value for key, value in summary[name].items() if key != "rewards"})
        print("  mean reward, first and last five steps:", rewards[:5], rewards[-5:])
    (arguments.output / "log-ratios.json").write_text(json.dumps(summary, indent=1))
    draw(measured, arguments.output / "log-ratios.svg")


if __name__ == "__main__":
    main()
