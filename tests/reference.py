"""Hugging Face's answers, which every parity test compares with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

_OPENINGS = (
    "def read_lines(path):\n",
    "class Queue:\n    def __init__(self",
    "import os\nimport sys\n\n",
    "for name in names:\n    if name",
    'raise ValueError("',
    "    def test_",
    "# The following",
    "try:\n    import",
    "return [x for x in",
    "with open(filename) as f:\n",
    "if __name__ == '__main__':\n",
    "from collections import",
    "self.assertEqual(",
    '"""Return the',
    "while True:\n    line =",
    "lambda x:",
)


def prompt_texts(count: int) -> list[str]:
    """Return `count` different Python openings; every fourth one is long enough to be chunked."""
    texts = []
    for i in range(count):
        opening = _OPENINGS[i % len(_OPENINGS)]
        preamble = (
            "" if i % 4 else "".join(f"VALUE_{i}_{j} = {j * i}\n" for j in range(8 * (i + 1)))
        )
        texts.append(f"{preamble}# {i}\n{opening}" if i >= len(_OPENINGS) else preamble + opening)
    return texts


def prompt_ids(
    tokenizer: PreTrainedTokenizerBase, count: int, max_len: int = 400
) -> list[list[int]]:
    """Return the token ids of `prompt_texts`, cut to `max_len`."""
    return [tokenizer(text)["input_ids"][:max_len] for text in prompt_texts(count)]


def generate_all(
    model: PreTrainedModel, prompt: list[int], config: GenerationConfig
) -> list[list[int]]:
    """Return the new tokens of all sequences of ``model.generate`` for one prompt.

    HF fills what is after the end of a shorter sequence; see `equal_to_the_end`. A ``seed`` of
    `config`, which HF does not know, is given to ``torch.manual_seed`` before.
    """
    if (seed := getattr(config, "seed", None)) is not None:
        torch.manual_seed(seed)
    input_ids = torch.tensor([prompt], device=model.device)
    with torch.inference_mode():
        output = model.generate(input_ids, generation_config=config)
    return output[:, len(prompt) :].tolist()


def generate_batch(
    model: PreTrainedModel, rows: list[list[int]], *, pad: int | None = None, **arguments: Any
) -> list[list[int]]:
    """Return the new tokens of all sequences of ``model.generate`` for prompts, padded left.

    HF fills what is after the end of a shorter sequence; see `equal_to_the_end`.

    Args:
        model: of Transformers.
        rows: the prompts.
        pad: ``pad_token_id``.
        arguments: of `generate()`, and ``seed`` for ``torch.manual_seed`` before.
    """
    longest = max(map(len, rows))
    padding = [longest - len(row) for row in rows]
    batch = torch.tensor([[pad or 0] * n + row for n, row in zip(padding, rows, strict=True)])
    mask = torch.tensor([[0] * n + [1] * len(row) for n, row in zip(padding, rows, strict=True)])
    if (seed := arguments.pop("seed", None)) is not None:
        torch.manual_seed(seed)
    with torch.inference_mode():
        output = model.generate(batch, attention_mask=mask, pad_token_id=pad, **arguments)
    sequences = output if isinstance(output, torch.Tensor) else output.sequences
    return sequences[:, longest:].tolist()


def equal_to_the_end(tokens: list[int], row: list[int], fill: set[int]) -> bool:
    """Whether `tokens` are a row of HF, without what fills it up to the longest one."""
    return tokens == row[: len(tokens)] and set(row[len(tokens) :]) <= fill


def generate(model: PreTrainedModel, prompt: list[int], config: GenerationConfig) -> list[int]:
    """Return the new tokens of ``model.generate`` for one prompt, batch size 1."""
    return generate_all(model, prompt, config)[0]
