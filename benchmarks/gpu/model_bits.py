"""The bits of a whole model's logits on a device, against those that a CPU has recorded.

    python -m benchmarks.gpu.model_bits attached --dtype bfloat16 --device cuda

The bundled model in deterministic mode answers 8 prompts with 256 greedy tokens. expected.json has
the tokens, and for each 32 of them a digest of all their logits; the bits depend on the model and
the tokens alone, so that every machine must have them. Printed is how many digests are equal.

attached: Transformers reads prompts with their answers at once; engine: all prompts are in one
batch, in chunks of 16 tokens; graphs: whole, and with CUDA graphs of decoding on a GPU, as engines
have them by default. The status is 1 if a digest differs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.gpu.generate import MODEL
from vllm.deterministic import attach
from vllm.parity.setting import PROMPTS

EXPECTED = Path(__file__).with_name("expected.json")
DTYPES = ("bfloat16", "float16")
TOKENS = 256
BLOCK = 32
"""Tokens that share a digest."""

MORE = {"gpu_memory_utilization": 0.1, "kernel_config": {"enable_jit_warmup": False}}
"""Arguments of an engine beside those of `determinism_side.start`: several run at once."""


@dataclass(frozen=True)
class Answer:
    """A greedy answer.

    Attributes:
        tokens: their ids.
        digests: of the logits of each `BLOCK` of them.
    """

    tokens: list[int]
    digests: list[str]


def compared(expected: Mapping[str, str], found: Mapping[str, str]) -> dict[str, Any]:
    """Return how many digests are equal, of how many, and the names of the others."""
    differing = [name for name, digest in expected.items() if found.get(name) != digest]
    equal = len(expected) - len(differing)
    return {"equal": equal, "of": len(expected), "differing": differing}


def prompt_ids() -> list[list[int]]:
    """Return the token ids of the prompts."""
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    return [tokenizer(text)["input_ids"] for text in PROMPTS]


def block_digests(logits: torch.Tensor) -> list[str]:
    """Return the digests of logits, float32 [tokens, vocab_size], of all blocks."""
    assert logits.dtype == torch.float32
    blocks = [block.cpu().contiguous().numpy() for block in logits.split(BLOCK)]
    return [hashlib.sha256(block.tobytes()).hexdigest()[:16] for block in blocks]


def attached_model(dtype: str, device: str) -> Any:
    """Return the bundled model of Transformers with the kernels."""
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=getattr(torch, dtype))
    return attach(model.to(device).eval())


@torch.no_grad()
def read(model: Any, prompt: Sequence[int], tokens: Sequence[int]) -> list[str]:
    """Return the digests of the logits that chose `tokens`, all computed at once."""
    ids = torch.tensor([[*prompt, *tokens[:-1]]], device=model.device)
    return block_digests(model(ids).logits[0, len(prompt) - 1 :])


def generate(model: Any, prompt: Sequence[int]) -> Answer:
    """Answer a prompt."""
    ids = torch.tensor([prompt], device=model.device)
    done = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=TOKENS, do_sample=False,
        eos_token_id=-1, output_logits=True, return_dict_in_generate=True,
    )  # fmt: skip
    logits = torch.cat(done.logits)
    return Answer(done.sequences[0, len(prompt) :].tolist(), block_digests(logits))


def answers(dtype: str) -> list[Answer]:
    """Answer the prompts on this machine's CPU."""
    model = attached_model(dtype, "cpu")
    return [generate(model, prompt) for prompt in prompt_ids()]


def by_attached(dtype: str, device: str, expected: list[Answer]) -> list[Answer]:
    """Read all prompts with the expected answers."""
    model = attached_model(dtype, device)
    pairs = zip(prompt_ids(), expected, strict=True)
    return [Answer(one.tokens, read(model, prompt, one.tokens)) for prompt, one in pairs]


def by_engine(
    dtype: str, device: str, _: list[Answer], more: Mapping[str, Any] = MappingProxyType({})
) -> list[Answer]:
    """Answer the prompts in one batch of an engine, which runs on the environment's device."""
    from benchmarks.determinism_side import start
    from vllm import SamplingParams
    from vllm.config import CUDAGraphMode

    arguments = {"max_num_batched_tokens": 16, "max_num_seqs": 16, **MORE, **more}
    llm = start(str(MODEL), dtype, "deterministic", arguments)
    graphs = llm.llm_engine.vllm_config.compilation_config.cudagraph_mode
    wants_graphs = device == "cuda" and not arguments.get("enforce_eager", True)
    if wants_graphs and graphs == CUDAGraphMode.NONE:
        raise RuntimeError("the engine has decided against CUDA graphs")
    params = SamplingParams(
        max_tokens=TOKENS, temperature=0, ignore_eos=True, logprobs=-1, detokenize=False,
        flat_logprobs=True,
    )  # fmt: skip
    given: Any = [{"prompt_token_ids": prompt} for prompt in prompt_ids()]
    found = [one.outputs[0] for one in llm.generate(given, params, use_tqdm=False)]
    return [Answer(list(one.token_ids), block_digests(rows_of(one.logprobs))) for one in found]


def by_graphs(dtype: str, device: str, expected: list[Answer]) -> list[Answer]:
    """The same as users start it: whole prompts, then CUDA graphs of decoding on a GPU."""
    more = {"enforce_eager": False, "max_num_batched_tokens": 2048}
    return by_engine(dtype, device, expected, more)


def rows_of(found: Any) -> torch.Tensor:
    """Return logits, float32 [tokens, vocab_size], of ``FlatLogprobs`` with all tokens."""
    rows = []
    for begin, end in zip(found.start_indices, found.end_indices, strict=True):
        ids = torch.tensor(found.token_ids[begin:end])
        row = torch.full((int(ids.max()) + 1,), torch.nan)
        row[ids] = torch.tensor(found.logprobs[begin:end])
        rows.append(row)
    return torch.stack(rows)


WAYS: dict[str, Callable[[str, str, list[Answer]], list[Answer]]] = {
    "attached": by_attached,
    "engine": by_engine,
    "graphs": by_graphs,
}
"""They take a dtype, a device and the expected answers."""


def named(answers: list[Answer]) -> Iterator[tuple[str, str]]:
    """Yield the names of all digests with them; a block with other tokens has another digest."""
    for number, one in enumerate(answers):
        for block, found in enumerate(one.digests):
            tokens = one.tokens[block * BLOCK : (block + 1) * BLOCK]
            yield f"prompt {number}, tokens from {block * BLOCK}", f"{found} {tokens}"


def expected_answers(dtype: str) -> list[Answer]:
    """Return what was recorded."""
    return [Answer(**one) for one in json.loads(EXPECTED.read_text())[dtype]]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("way", choices=WAYS)
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16")
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    expected = expected_answers(options.dtype)
    found = WAYS[options.way](options.dtype, options.device, expected)
    values = compared(dict(named(expected)), dict(named(found)))
    print(json.dumps(values))
    sys.exit(values["equal"] != values["of"])


if __name__ == "__main__":
    main()
