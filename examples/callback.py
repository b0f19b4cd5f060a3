"""A logits processor and a stopping criterion of your own, as Transformers takes them.

They are pickled, and run in the engine's worker on a copy for each sequence.

    python examples/callback.py [MODEL]
"""

import sys

import torch
from transformers import LogitsProcessor, StoppingCriteria

from vllm import LLM

MODEL = sys.argv[1] if len(sys.argv) > 1 else "models/tiny-python-llama"


class OnlyEvenTokens(LogitsProcessor):
    """Forbids every second token of the vocabulary."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores = scores.clone()
        scores[:, 1::2] = -torch.inf
        return scores


class AfterSix(StoppingCriteria):
    """Ends a sequence six tokens after the first that it sees."""

    def __init__(self) -> None:
        self.first = 0

    def __call__(self, input_ids: torch.Tensor, scores: object, **_: object) -> torch.Tensor:
        self.first = self.first or input_ids.shape[1]
        return torch.full((input_ids.shape[0],), input_ids.shape[1] >= self.first + 6)


if __name__ == "__main__":
    llm = LLM(MODEL, dtype="float32", hf_compat=True)
    answer = llm.generate(
        "def f(x):",
        max_new_tokens=32,
        logits_processor=[OnlyEvenTokens()],
        stopping_criteria=[AfterSix()],
    )[0].outputs[0]
    print(list(answer.token_ids), repr(answer.text))
