"""The logits that Transformers gives a twin's texts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
)

from vllm.deterministic import attach
from vllm.hf_layers.definition.configuration import own_classes
from vllm.twin.setting import EngineSetting, Steps


class _Follow(LogitsProcessor):
    """Lets `generate()` choose the tokens that the other side has chosen."""

    def __init__(self, start: int, tokens: Sequence[int]) -> None:
        self._start, self._tokens = start, tokens

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        token = self._tokens[input_ids.shape[1] - self._start]
        chosen = torch.full_like(scores, -torch.inf)
        chosen[:, token] = 0
        return chosen  # type: ignore[return-value]


def load(
    folder: Path, dtype: torch.dtype, setting: EngineSetting, longest: int, is_attached: bool = True
) -> PreTrainedModel:
    """Load a twin as a user of Transformers does.

    Args:
        folder: of the checkpoint.
        dtype: of the model.
        setting: of the engine.
        longest: tokens of the longest text with its answer.
        is_attached: whether the model is in `attach` where the engine is in deterministic mode.
    """
    arguments: dict[str, Any] = {"trust_remote_code": setting.remote_code}
    if setting.attention is not None:
        arguments["attn_implementation"] = setting.attention
    if dtype == torch.float64:  # which the grouped products of experts have no kernels for
        arguments["experts_implementation"] = "eager"
    with own_classes():
        made: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, **arguments
        )
    model = made.eval()
    if is_attached and setting.flags.is_portable and dtype != torch.float64:
        attach(model, max_length=longest)
    return model


@torch.inference_mode()
def logits(
    model: PreTrainedModel, texts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]
) -> list[Steps]:
    """Return what `generate()` computes for each text alone, on the way of given answers.

    Args:
        model: of the twin.
        texts: token ids.
        answers: token ids that follow each text.
    """
    found = []
    for text, answer in zip(texts, answers, strict=True):
        output: Any = model.generate(
            torch.tensor([text], device=model.device),
            max_new_tokens=len(answer),
            min_new_tokens=len(answer),
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
            logits_processor=LogitsProcessorList([_Follow(len(text), answer)]),
            output_logits=True,
            return_dict_in_generate=True,
        )
        found.append(torch.cat(output.logits).cpu())
    return found
