"""Train the bundled ``models/tiny-python-llama`` from the running interpreter's own sources.

The project's demo, tests and benchmarks must run without downloads, yet a model with random
weights is a poor stand-in for a real one: its logits carry no structure and it never emits EOS.
This script therefore trains a real (if tiny) Llama, with grouped-query attention, SwiGLU, RoPE
and tied embeddings, on the ``.py`` files of the Python standard library, which every
installation of Python has at hand.

    python -m tools.train_tiny_llama --out models/tiny-python-llama

Everything random is seeded and the documents are read in sorted order, so two runs on the same
machine with the same Python, torch and number of threads write the same bytes.
"""

from __future__ import annotations

import argparse
import math
import platform
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch.nn.functional import cross_entropy
from tqdm import tqdm
from transformers import (
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from tools.python_corpus import (
    HELD_OUT,
    Document,
    corpus_sha256,
    read_documents,
    split_held_out,
)

PAD, BOS, EOS = "<pad>", "<s>", "</s>"
SPECIAL_TOKENS = (PAD, BOS, EOS)  # their ids are their positions: 0, 1, 2

# Newlines, indentation and words are separate pieces (the pattern of Llama 3), so a prompt that
# ends in a newline is cut at the same places as the text the model was trained on.
SPLIT_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

CARD_PROMPTS = ("def ", "class Foo(", "import os\n", "    def __init__(self, ")
"""Prompts whose greedy completions the model card shows."""


@dataclass(frozen=True)
class Recipe:
    """Every number which decides the trained weights (besides the Python and torch versions)."""

    vocab_size: int = 4096
    hidden_size: int = 256
    intermediate_size: int = 320
    num_layers: int = 6
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 64
    max_positions: int = 2048
    context: int = 256
    batch_size: int = 8
    steps: int = 2500
    warmup_steps: int = 100
    learning_rate: float = 3e-3
    weight_decay: float = 0.1
    clip_norm: float = 1.0
    seed: int = 0
    threads: int = 2
    max_documents: int | None = None


@dataclass(frozen=True)
class Stream:
    """The tokenized corpus: ``tokens`` int64 ``[n]`` and ``line_starts`` int64 ``[m]``.

    ``line_starts`` are the positions in ``tokens`` at which a training window may begin.
    """

    tokens: torch.Tensor
    line_starts: torch.Tensor


@dataclass(frozen=True)
class Outcome:
    """What a training run measured, for the model card."""

    train_loss: float
    held_out_loss: float
    seconds: float
    corpus_tokens: int


# --- tokenizer ------------------------------------------------------------------------------


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE on ``texts`` which puts BOS first, as Llama's tokenizer does.

    All 256 bytes are in the vocabulary, so any text survives encoding and decoding.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    bos_id = tokenizer.token_to_id(BOS)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A {BOS} $B", special_tokens=[(BOS, bos_id)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        clean_up_tokenization_spaces=False,
    )


def tokenize_corpus(tokenizer: PreTrainedTokenizerFast, documents: Sequence[Document]) -> Stream:
    """Join ``<s> document </s>`` of every document and mark where lines begin."""
    texts = [document.text for document in documents]
    encoded = tokenizer(texts)["input_ids"]  # the post-processor adds BOS
    ids = [token for document in encoded for token in (*document, tokenizer.eos_token_id)]
    tokens = torch.tensor(ids, dtype=torch.int64)
    pieces = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    # "Ċ" is how byte-level BPE spells "\n"; BOS begins a document and thereby a line.
    ends_line = torch.tensor([piece.endswith("Ċ") or piece == BOS for piece in pieces])
    line_starts = ends_line[tokens].nonzero().squeeze(1) + 1
    return Stream(tokens, line_starts)


# --- model and training ---------------------------------------------------------------------


def build_model(recipe: Recipe) -> LlamaForCausalLM:
    """A freshly initialised float32 Llama of the recipe's shape."""
    config = LlamaConfig(
        vocab_size=recipe.vocab_size,
        hidden_size=recipe.hidden_size,
        intermediate_size=recipe.intermediate_size,
        num_hidden_layers=recipe.num_layers,
        num_attention_heads=recipe.num_heads,
        num_key_value_heads=recipe.num_kv_heads,
        head_dim=recipe.head_dim,
        max_position_embeddings=recipe.max_positions,
        tie_word_embeddings=True,  # halves the largest matrix of so small a model
        pad_token_id=SPECIAL_TOKENS.index(PAD),
        bos_token_id=SPECIAL_TOKENS.index(BOS),
        eos_token_id=SPECIAL_TOKENS.index(EOS),
        dtype=torch.float32,
    )
    return LlamaForCausalLM(config)


def sample_batch(stream: Stream, recipe: Recipe, generator: torch.Generator) -> torch.Tensor:
    """Draw windows, int64 ``[batch_size, context + 1]``, each BOS and then whole lines.

    Every window starts with BOS at a line start, because that is how every prompt starts: a
    model which met BOS at module heads alone would answer ``def `` with a licence comment.
    """
    last_start = len(stream.tokens) - recipe.context
    starts = stream.line_starts[stream.line_starts <= last_start]
    drawn = torch.randint(len(starts), (recipe.batch_size,), generator=generator)
    offsets = torch.arange(recipe.context)
    windows = stream.tokens[starts[drawn].unsqueeze(1) + offsets]
    bos = torch.full((recipe.batch_size, 1), SPECIAL_TOKENS.index(BOS))
    return torch.cat([bos, windows], dim=1)


def next_token_loss(model: LlamaForCausalLM, windows: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy (nats, scalar) of every token of ``windows`` but the first."""
    logits = model(windows[:, :-1], use_cache=False).logits
    return cross_entropy(logits.float().flatten(0, 1), windows[:, 1:].flatten())


def learning_rate_factor(step: int, recipe: Recipe) -> float:
    """Linear warm-up to 1, then half a cosine down to 0 at ``recipe.steps``."""
    if step < recipe.warmup_steps:
        return (step + 1) / recipe.warmup_steps
    progress = (step - recipe.warmup_steps) / max(1, recipe.steps - recipe.warmup_steps)
    return 0.5 * (1.0 + math.cos(math.pi * progress))


def make_optimizer(model: LlamaForCausalLM, recipe: Recipe) -> torch.optim.AdamW:
    """AdamW which decays the matrices only (norm gains are meant to sit near 1)."""
    matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    gains = [parameter for parameter in model.parameters() if parameter.dim() <= 1]
    groups = [
        {"params": matrices, "weight_decay": recipe.weight_decay},
        {"params": gains, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=recipe.learning_rate, betas=(0.9, 0.95))


def train_model(
    stream: Stream, recipe: Recipe, *, progress: bool = True
) -> tuple[LlamaForCausalLM, float]:
    """Train for ``recipe.steps`` steps; return the float32 model and its smoothed final loss."""
    torch.manual_seed(recipe.seed)
    torch.set_num_threads(recipe.threads)
    model = build_model(recipe).train()
    optimizer = make_optimizer(model, recipe)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: learning_rate_factor(step, recipe)
    )
    generator = torch.Generator().manual_seed(recipe.seed)
    smoothed = math.log(recipe.vocab_size)  # the loss of a model which knows nothing
    bar = tqdm(range(recipe.steps), desc="training", unit="step", disable=not progress)
    for _ in bar:
        loss = next_token_loss(model, sample_batch(stream, recipe, generator))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip_norm)
        optimizer.step()
        schedule.step()
        smoothed = 0.97 * smoothed + 0.03 * loss.item()
        bar.set_postfix(loss=f"{smoothed:.3f}", refresh=False)
    return model.eval(), smoothed


@torch.no_grad()
def held_out_loss(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    documents: Sequence[Document],
    context: int,
) -> float:
    """Mean nats per token of ``documents``, each cut into pieces of BOS and ``context`` tokens.

    The remainder shorter than ``context`` at a document's end is dropped.

    Raises:
        ValueError: no document is as long as ``context``.
    """
    pieces = []
    for document in documents:
        ids = tokenizer(document.text, add_special_tokens=False)["input_ids"]
        cuts = range(0, len(ids) - context + 1, context)
        pieces += [[tokenizer.bos_token_id, *ids[cut : cut + context]] for cut in cuts]
    if not pieces:
        raise ValueError(f"no document has {context} tokens")
    losses = [next_token_loss(model, torch.tensor([piece])).item() for piece in pieces]
    return sum(losses) / len(losses)


@torch.no_grad()
def complete(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, prompt: str, length: int = 48
) -> str:
    """The greedy completion of ``prompt``, at most ``length`` tokens, without the prompt."""
    inputs = tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)
    output = model.generate(**inputs, max_new_tokens=length, do_sample=False)
    return tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)


# --- writing the folder ---------------------------------------------------------------------


def round_to_bfloat16(model: LlamaForCausalLM) -> LlamaForCausalLM:
    """Round the weights in place to bfloat16 values, kept as float32, as loading will see them."""
    return model.to(torch.bfloat16).float()


def save_model(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, recipe: Recipe, out: Path
) -> None:
    """Write configuration, bfloat16 weights and tokenizer to ``out``."""
    config = model.config
    model.generation_config = GenerationConfig(
        bos_token_id=config.bos_token_id,
        eos_token_id=config.eos_token_id,
        pad_token_id=config.pad_token_id,
    )
    model.to(torch.bfloat16).save_pretrained(out)
    tokenizer.model_max_length = recipe.max_positions
    tokenizer.save_pretrained(out)
    model.float()


def card_text(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    recipe: Recipe,
    train: Sequence[Document],
    outcome: Outcome,
) -> str:
    """The model card (README.md), every number of it taken from this very run."""
    parameters = sum(parameter.numel() for parameter in model.parameters())
    corpus_bytes = sum(len(document.text.encode()) for document in train)
    trained_on = recipe.steps * recipe.batch_size * recipe.context
    samples = "\n".join(
        f"```python\n{prompt}{complete(model, tokenizer, prompt)}\n```\n" for prompt in CARD_PROMPTS
    )
    return f"""---
license: apache-2.0
library_name: transformers
pipeline_tag: text-generation
---

# tiny-python-llama

A Llama of {parameters:,} parameters trained on the sources of Python's standard library. It
completes text which looks like Python and is good for nothing else: it exists so that this
repository's demo, tests and benchmarks run on trained weights without any download.

| Shape | |
|---|---|
| layers | {recipe.num_layers} |
| hidden size | {recipe.hidden_size} |
| intermediate size (SwiGLU) | {recipe.intermediate_size} |
| query heads / key-value heads | {recipe.num_heads} / {recipe.num_kv_heads} |
| head dimension | {recipe.head_dim} |
| positions (RoPE) | {recipe.max_positions} |
| vocabulary (byte-level BPE) | {recipe.vocab_size} |
| embeddings | tied |
| stored as | bfloat16 |

The tokenizer puts `{BOS}` (id 1) first; `{EOS}` (id 2) ends a module; `{PAD}` (id 0) pads.

## Training

`python -m tools.train_tiny_llama --out models/tiny-python-llama` on two CPU cores, float32,
Python {platform.python_version()}, torch {torch.__version__},
transformers {transformers.__version__}.

| Training | |
|---|---|
| files | {len(train)} |
| bytes | {corpus_bytes} |
| tokens in the corpus | {outcome.corpus_tokens} |
| corpus SHA-256 | `{corpus_sha256(train)}` |
| steps | {recipe.steps} |
| windows per step x tokens | {recipe.batch_size} x {recipe.context} |
| tokens trained on | {trained_on} |
| AdamW learning rate | {recipe.learning_rate} |
| seed | {recipe.seed} |
| minutes | {outcome.seconds / 60:.1f} |
| final training loss (smoothed, nats per token) | {outcome.train_loss:.3f} |
| held-out loss (nats per token) | {outcome.held_out_loss:.3f} |
| held-out perplexity | {math.exp(outcome.held_out_loss):.2f} |

The files are the `.py` sources of the modules in `sys.stdlib_module_names` without tests,
IDLE, lib2to3, character tables and generated texts, and without the held-out modules
{", ".join(f"`{name}`" for name in HELD_OUT)}.
The model saw windows of {recipe.context} tokens; beyond that its completions stay finite and
deterministic but drift.

## Greedy completions

{samples}
## Licence

The weights are under this repository's Apache-2.0 licence. They were trained on CPython's
standard library, which is under the Python Software Foundation License Version 2.
"""


def run(recipe: Recipe, out: Path, *, progress: bool = True) -> Outcome:
    """Train by ``recipe`` and write the model folder ``out`` (made if missing)."""
    train, held_out = split_held_out(read_documents())
    train = train[: recipe.max_documents]
    tokenizer = train_tokenizer((document.text for document in train), recipe.vocab_size)
    stream = tokenize_corpus(tokenizer, train)
    started = time.perf_counter()
    model, train_loss = train_model(stream, recipe, progress=progress)
    seconds = time.perf_counter() - started
    round_to_bfloat16(model)
    measured = held_out_loss(model, tokenizer, held_out, recipe.context)
    outcome = Outcome(train_loss, measured, seconds, len(stream.tokens))
    out.mkdir(parents=True, exist_ok=True)
    save_model(model, tokenizer, recipe, out)
    card = card_text(model, tokenizer, recipe, train, outcome)
    (out / "README.md").write_text(card, encoding="utf-8")
    return outcome


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line: train and print what was measured."""
    default = Recipe()
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder to write the model to")
    parser.add_argument("--steps", type=int, default=default.steps)
    parser.add_argument("--batch-size", type=int, default=default.batch_size)
    parser.add_argument("--context", type=int, default=default.context)
    parser.add_argument("--learning-rate", type=float, default=default.learning_rate)
    parser.add_argument("--seed", type=int, default=default.seed)
    parser.add_argument("--threads", type=int, default=default.threads)
    options = vars(parser.parse_args(arguments))
    out = options.pop("out")
    outcome = run(Recipe(**options), out)
    print(
        f"wrote {out}: training loss {outcome.train_loss:.3f}, held-out loss "
        f"{outcome.held_out_loss:.3f}, {outcome.seconds / 60:.1f} minutes"
    )


if __name__ == "__main__":
    main()
