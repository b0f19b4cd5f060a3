"""Files of prompts for several engines, and the answers of one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from transformers import GenerationConfig

from tests.reference import generate, prompt_texts

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from vllm import LLM

ASKED_HF = 12
"""Rows that Transformers is asked, which answers one after the other."""


def short_prompts(count: int) -> list[str]:
    """Return different prompts of a few tokens."""
    texts = [text for text in prompt_texts(2 * count) if len(text) < 100]
    assert len(set(texts)) >= count
    return texts[:count]


def write_rows(file: Path, prompts: list[str], name: str) -> None:
    """Write JSON lines with an ``id``, the prompt as `name`, and nothing else."""
    lines = [json.dumps({"id": str(i), name: prompt}) for i, prompt in enumerate(prompts)]
    file.write_text("\n".join(lines) + "\n")


def of_one_engine(engine: LLM, prompts: list[str], config: GenerationConfig) -> dict[str, str]:
    """Return the texts of ``LLM.generate`` by a row's id."""
    outputs = engine.generate(prompts, config, use_tqdm=False)
    return {str(i): output.outputs[0].text for i, output in enumerate(outputs)}


def of_transformers(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: list[str],
    config: GenerationConfig,
) -> dict[str, str]:
    """Return the texts of ``model.generate()`` for the first rows, each asked alone."""
    return {
        str(i): tokenizer.decode(
            generate(model, tokenizer(prompt)["input_ids"], config), skip_special_tokens=True
        )
        for i, prompt in enumerate(prompts[:ASKED_HF])
    }
