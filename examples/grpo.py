"""Reinforcement learning in which the trainer and the engine agree to the last bit (GRPO).

A server answers prompts, this process trains a model of Transformers on the answers, and sends it
the new weights after each step. The reward says whether an answer is Python. After each step this
prints the mean reward, and how far the log-probabilities of the sampled tokens were apart between
trainer and engine: 0.0, as both compute with the same bits. With --plain they do without.

python examples/grpo.py [--plain] [--lora] [--sleep] [--steps 50] [--model MODEL] [--folder DIR]

With --folder it keeps what it trains there, and goes on with it. grpo_parts.py, beside it, starts
the server, has the optimizer, and sends the weights.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from grpo_parts import Trained, post, reward_of, sender, server

from vllm.deterministic import token_log_probs

GROUP, NEW_TOKENS = 8, 32
PROMPTS = [
    "def read_lines(path):\n", "class Queue:\n    def __init__(self", "import os\nimport",
    "for name in names:\n", "def main(args):\n    if", "class Parser:\n", "x = [1, 2]\n",
    "def test_parse(self):\n    self.assert",
]  # fmt: skip


def sample(url: str, arguments: argparse.Namespace, step: int) -> list[dict[str, Any]]:
    """Return a group of answers to each prompt: tokens, log-probabilities, advantages."""
    rows = []
    answer = post(
        f"{url}/v1/completions",
        model="policy" if arguments.lora else arguments.model,
        prompt=PROMPTS,
        n=GROUP,
        max_tokens=NEW_TOKENS,
        temperature=1.0,
        seed=step,
        logprobs=0,
        return_token_ids=True,
    )
    for index, choice in enumerate(answer["choices"]):
        prompt = PROMPTS[index // GROUP]
        rows.append(
            {
                "prompt": choice["prompt_token_ids"],
                "answer": choice["token_ids"],
                "log_probs": choice["logprobs"]["token_logprobs"],
                "reward": reward_of(prompt + choice["text"]),
            }
        )
    rewards = torch.tensor([row["reward"] for row in rows]).view(-1, GROUP)
    centred = rewards - rewards.mean(1, keepdim=True)
    advantages = centred / (rewards.std(1, keepdim=True) + 1e-4)
    return [row | {"advantage": one} for row, one in zip(rows, advantages.flatten(), strict=True)]


def log_probs_of(
    model: Any, ids: torch.Tensor, mask: torch.Tensor, kept: int, plain: bool
) -> torch.Tensor:
    """Return the log-probabilities [rows, kept] of the last tokens of each row."""
    if not plain:
        return token_log_probs(model, ids, attention_mask=mask, logits_to_keep=kept)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    output = model(ids, attention_mask=mask, position_ids=positions, logits_to_keep=kept + 1)
    probabilities = output.logits[:, :-1].float().log_softmax(-1)
    return probabilities.gather(-1, ids[:, -kept:, None])[..., 0]


def loss_of(
    model: Any, rows: list[dict[str, Any]], plain: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return GRPO's loss, and log(trainer / engine) of each sampled token."""
    kept = max(len(row["answer"]) for row in rows)
    width = max(len(row["prompt"]) for row in rows) + kept
    ids, mask = torch.zeros(2, len(rows), width, dtype=torch.long)
    theirs, weights = torch.zeros(2, len(rows), kept)
    for index, row in enumerate(rows):
        tokens = row["prompt"] + row["answer"]
        ids[index, -len(tokens) :] = torch.tensor(tokens)
        mask[index, -len(tokens) :] = 1
        theirs[index, -len(row["answer"]) :] = torch.tensor(row["log_probs"])
        weights[index, -len(row["answer"]) :] = 1
    advantages = torch.stack([row["advantage"] for row in rows])[:, None]
    log_ratios = log_probs_of(model, ids, mask, kept, plain) - theirs
    ratios = log_ratios.exp()
    gains = torch.minimum(ratios * advantages, ratios.clamp(0.8, 1.2) * advantages)
    return -(gains * weights).sum() / weights.sum(), log_ratios.detach()[weights.bool()]


def train(arguments: argparse.Namespace) -> Iterator[tuple[int, float, torch.Tensor]]:
    """Yield the number of each step, the mean reward, and log(trainer / engine) of each token."""
    trained = Trained(arguments)
    with server(arguments) as url:
        send = sender(url, trained, arguments)
        send()
        while trained.step < arguments.steps:
            rows = sample(url, arguments, trained.step)
            if arguments.sleep:
                post(f"{url}/sleep?level=1")
            loss, log_ratios = loss_of(trained.model, rows, arguments.plain)
            trained.update(loss)
            trained.keep()
            if arguments.sleep:
                post(f"{url}/wake_up")
            send()
            yield trained.step, sum(row["reward"] for row in rows) / len(rows), log_ratios


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="models/tiny-python-llama")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--folder", type=Path)
    for flag in ("--plain", "--lora", "--sleep"):
        parser.add_argument(flag, action="store_true")
    return parser.parse_args(words)


def main() -> None:
    largest = 0.0
    for step, reward, log_ratios in train(parse()):
        apart = log_ratios.abs().max().item()
        largest = max(largest, apart)
        print(f"step {step}: reward {reward:.3f}, log-ratios at most {apart}", flush=True)
    print(f"The largest |log(trainer / engine)| of all steps: {largest}")


if __name__ == "__main__":
    main()
