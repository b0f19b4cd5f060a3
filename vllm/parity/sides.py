"""The same requests, answered by Transformers and by an engine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tqdm.auto import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from vllm.fork.startup.torch_switches import with_fresh_switches
from vllm.hf_compat.answers import HFOutput
from vllm.hf_compat.call.generate_call import GenerateCall
from vllm.hf_layers.definition.configuration import own_classes
from vllm.parity.setting import Setting

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from vllm import LLM

NUM_LOGPROBS = 20
"""Tokens of each step whose logprobs are kept where the logits are not: vLLM's own limit."""

_SMALLEST_BLOCK = 16
_INSECURE = "VLLM_ALLOW_INSECURE_SERIALIZATION"

_OFF = {"hf_compat": False, "deterministic": False, "receipts": False}
FLAGS: dict[str, dict[str, Any]] = {
    "upstream": {**_OFF, "split_qkv": False},
    "hf_compat": {**_OFF, "hf_compat": True},
    "exact": {**_OFF, "hf_compat": "exact"},
    "deterministic": {**_OFF, "hf_compat": True, "deterministic": True},
}
"""Arguments of ``LLM`` for each of `MODES`, whatever environment variables say."""


@dataclass(frozen=True)
class Answer:
    """One side's continuation of a prompt.

    Attributes:
        tokens: the new ones.
        logprobs: of each step, those of the likeliest tokens, and of the chosen one.
        logits: float32 [num_tokens, vocab_size]; None where the engine does not give them.
    """

    tokens: list[int]
    logprobs: list[dict[int, float]]
    logits: np.ndarray | None = None


class HuggingFace:
    """A model in Transformers, as `generate()` runs it in a process without vLLM, whose import
    changes switches of PyTorch.

    Args:
        setting: what is compared.
    """

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            setting.model, trust_remote_code=setting.trust_remote_code
        )
        with own_classes():
            self.model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
                setting.model,
                dtype=getattr(torch, setting.dtype),
                trust_remote_code=setting.trust_remote_code,
            ).eval()
        if torch.cuda.is_available():
            self.model.cuda()

    def prompt_ids(self) -> list[list[int]]:
        """Return the token ids of each prompt."""
        return [self.tokenizer(text)["input_ids"] for text in self.setting.prompts]

    @with_fresh_switches()
    @torch.inference_mode()
    def answers(self) -> list[Answer]:
        """Answer each prompt alone in its batch."""
        prompts = tqdm(self.prompt_ids(), desc="Hugging Face", leave=False)
        return [self._answer(prompt) for prompt in prompts]

    def _answer(self, prompt: list[int]) -> Answer:
        if (seed := self.setting.fields.get("seed")) is not None:
            torch.manual_seed(seed)
        output = self.model.generate(
            torch.tensor([prompt], device=self.model.device),
            output_logits=True,
            return_dict_in_generate=True,
            **{name: value for name, value in self.setting.fields.items() if name != "seed"},
        )
        tokens = output.sequences[0, len(prompt) :].tolist()
        logits = torch.cat(output.logits).float().cpu()
        return Answer(tokens, _top(logits, tokens), logits.numpy())


def _top(logits: torch.Tensor, tokens: list[int]) -> list[dict[int, float]]:
    """Return the logprobs of the likeliest tokens and of the chosen one, for each step."""
    logprobs = logits.log_softmax(-1)
    values, ids = logprobs.topk(min(NUM_LOGPROBS, logits.shape[1]))
    return [
        dict(zip(ids[i].tolist(), values[i].tolist(), strict=True))
        | {token: float(logprobs[i, token])}
        for i, token in enumerate(tokens)
    ]


@contextmanager
def engine(setting: Setting, mode: str, num_tokens: int) -> Iterator[LLM]:
    """Start an engine for a while.

    Args:
        setting: what is compared.
        mode: of `MODES`.
        num_tokens: of the longest prompt.
    """
    from vllm import LLM

    length = num_tokens + setting.max_new_tokens + 1
    blocks = len(setting.prompts) * -(-length // _SMALLEST_BLOCK) + 1  # memory for these alone
    with _functions_are_sent():
        llm = LLM(
            setting.model,
            dtype=setting.dtype,
            trust_remote_code=setting.trust_remote_code,
            max_model_len=length,
            max_num_batched_tokens=max(2048, length),  # prompts in one piece
            enforce_eager=True,
            enable_prefix_caching=False,
            num_gpu_blocks_override=blocks,
            **FLAGS[mode],
        )
        try:
            yield llm
        finally:
            llm.llm_engine.engine_core.shutdown()


@contextmanager
def _functions_are_sent() -> Iterator[None]:
    """Let functions be sent to the worker for a while: those that hold the hidden states, whose
    worker is this process's own.
    """
    before = os.environ.get(_INSECURE)
    os.environ[_INSECURE] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_INSECURE]
        else:
            os.environ[_INSECURE] = before


def engine_answers(llm: LLM, setting: Setting, prompts: list[list[int]]) -> list[Answer]:
    """Answer all prompts at once, whatever the flags of the engine.

    Args:
        llm: an engine.
        setting: what is compared.
        prompts: token ids.
    """
    frontend = llm.input_processor.hf_compat
    if frontend is None:
        params = _upstream_params(setting)
    else:
        config = GenerationConfig(**setting.fields, output_logits=True)
        params = frontend.to_sampling_params(GenerateCall.of(config))
        params.logprobs = NUM_LOGPROBS
    given: Any = [{"prompt_token_ids": prompt} for prompt in prompts]
    outputs = llm.generate(given, [params] * len(given), use_tqdm=False)
    return [_answer_of(output.outputs[0]) for output in outputs]


def _upstream_params(setting: Setting) -> Any:
    """Return what a user of vLLM writes for the same request: the names that it shares with HF."""
    from vllm import SamplingParams

    fields = dict(setting.fields)
    is_sampled = fields.pop("do_sample", False)
    params = {"max_tokens": fields.pop("max_new_tokens"), "logprobs": NUM_LOGPROBS}
    shared = ("repetition_penalty", "temperature", "top_k", "top_p", "min_p", "seed")
    params |= {name: fields.pop(name) for name in shared if name in fields}
    if fields:
        raise ValueError(
            f"vLLM without hf_compat has no {', '.join(sorted(fields))}: "
            "leave the mode upstream out."
        )
    if not is_sampled:
        params["temperature"] = 0
    return SamplingParams(**params)


def _answer_of(output: Any) -> Answer:
    logprobs = [
        {token: one.logprob for token, one in step.items()} for step in output.logprobs or []
    ]
    logits = output.logits if isinstance(output, HFOutput) else None
    return Answer(list(output.token_ids), logprobs, logits)
