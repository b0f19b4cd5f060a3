"""Write a model of a real architecture and shape with random weights, without any download.

The configurations below are the published numbers of well-known checkpoints, so that every
architecture can be compared between engines at its real shape. Only the weights are random.

    python tools/make_random_model.py opt-125m /tmp/opt-125m
    python tools/make_random_model.py mistral-7b /tmp/mistral --layers 2 --narrow

The tokenizer is the bundled one of ``models/tiny-python-llama`` with 4,096 pieces. ``vocab_size``
keeps its real, larger value, so the model emits ids which no piece spells: they decode to nothing.
Compare token ids, not text. BOS, EOS and PAD are moved to the ids which the model's configuration
names (a BOS which is the model's PAD would be masked out by Transformers), and BOS is added to
prompts only where the real tokenizer does so.

``generation_config.json`` holds the real model's token ids and sampling defaults. Left out is
Gemma's ``cache_implementation``, which names a cache class rather than a property of the answer.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedModel
from transformers.pytorch_utils import Conv1D

BUNDLED_MODEL = Path(__file__).resolve().parents[1] / "models" / "tiny-python-llama"
MAX_BYTES = 4 * 1024**3
"""Refuse larger weights: they are a mistyped command more often than a wish."""

EMBEDDING_STD = 0.05
"""Small beside the blocks' outputs (spread 1), or tied embeddings would repeat the last token."""

VECTOR_STD = 0.05
"""Spread of biases and norm gains around their usual start (0 or 1), so that each is exercised."""


@dataclass(frozen=True)
class Shape:
    """A checkpoint's published numbers.

    Attributes:
        source: name of the checkpoint on the Hugging Face Hub whose numbers these are.
        config: the arguments of ``AutoConfig.for_model``, ``model_type`` included.
        generation: the content of ``generation_config.json``.
        narrow: replacements in ``config`` for a model of a few megabytes per layer; head
            dimension, head grouping and everything else special to the family stay.
        adds_bos: whether the real tokenizer puts BOS before a prompt.
    """

    source: str
    config: Mapping[str, Any]
    generation: Mapping[str, Any]
    narrow: Mapping[str, Any]
    adds_bos: bool = False


def _rope(theta: float, **more: Any) -> dict[str, Any]:
    """Plain rotary embeddings of base ``theta``."""
    return {"rope_type": "default", "rope_theta": theta, **more}


SHAPES: dict[str, Shape] = {
    "opt-125m": Shape(
        source="facebook/opt-125m",
        config={
            "model_type": "opt",
            "vocab_size": 50272,
            "hidden_size": 768,
            "word_embed_proj_dim": 768,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "ffn_dim": 3072,
            "max_position_embeddings": 2048,
            "activation_function": "relu",
            "do_layer_norm_before": True,
            "bos_token_id": 2,
            "eos_token_id": 2,
            "pad_token_id": 1,
        },
        generation={"bos_token_id": 2, "eos_token_id": 2, "pad_token_id": 1},
        narrow={
            "hidden_size": 256,
            "word_embed_proj_dim": 256,
            "num_attention_heads": 4,
            "ffn_dim": 1024,
        },
        adds_bos=True,
    ),
    "gpt2": Shape(
        source="openai-community/gpt2",
        config={
            "model_type": "gpt2",
            "vocab_size": 50257,
            "n_embd": 768,
            "n_layer": 12,
            "n_head": 12,
            "n_positions": 1024,
            "activation_function": "gelu_new",
            "layer_norm_epsilon": 1e-5,
            "bos_token_id": 50256,
            "eos_token_id": 50256,
        },
        generation={"bos_token_id": 50256, "eos_token_id": 50256},
        narrow={"n_embd": 256, "n_head": 4},
    ),
    "pythia-160m": Shape(
        source="EleutherAI/pythia-160m",
        config={
            "model_type": "gpt_neox",
            "vocab_size": 50304,
            "hidden_size": 768,
            "intermediate_size": 3072,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "max_position_embeddings": 2048,
            "hidden_act": "gelu",
            "layer_norm_eps": 1e-5,
            "use_parallel_residual": True,
            "tie_word_embeddings": False,
            "rope_parameters": _rope(10000.0, partial_rotary_factor=0.25),
            "bos_token_id": 0,
            "eos_token_id": 0,
        },
        generation={"bos_token_id": 0, "eos_token_id": 0},
        narrow={"hidden_size": 256, "intermediate_size": 1024, "num_attention_heads": 4},
    ),
    "tiny-starcoder": Shape(
        source="bigcode/tiny_starcoder_py",
        config={
            "model_type": "gpt_bigcode",
            "vocab_size": 49152,
            "n_embd": 768,
            "n_inner": 3072,
            "n_layer": 20,
            "n_head": 12,
            "n_positions": 8192,
            "multi_query": True,
            "activation_function": "gelu_pytorch_tanh",
            "layer_norm_epsilon": 1e-5,
            "bos_token_id": 0,
            "eos_token_id": 0,
        },
        generation={"bos_token_id": 0, "eos_token_id": 0},
        narrow={"n_embd": 256, "n_inner": 1024, "n_head": 4},
    ),
    "tinyllama-1.1b": Shape(
        source="TinyLlama/TinyLlama-1.1B-Chat-v1.0",
        config={
            "model_type": "llama",
            "vocab_size": 32000,
            "hidden_size": 2048,
            "intermediate_size": 5632,
            "num_hidden_layers": 22,
            "num_attention_heads": 32,
            "num_key_value_heads": 4,
            "max_position_embeddings": 2048,
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": False,
            "rope_parameters": _rope(10000.0),
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        generation={
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 0,
            "max_length": 2048,
        },
        narrow={
            "hidden_size": 256,
            "intermediate_size": 704,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
        },
        adds_bos=True,
    ),
    "qwen2-0.5b": Shape(
        source="Qwen/Qwen2-0.5B",
        config={
            "model_type": "qwen2",
            "vocab_size": 151936,
            "hidden_size": 896,
            "intermediate_size": 4864,
            "num_hidden_layers": 24,
            "num_attention_heads": 14,
            "num_key_value_heads": 2,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-6,
            "use_sliding_window": False,
            "sliding_window": 131072,
            "max_window_layers": 24,
            "tie_word_embeddings": True,
            "rope_parameters": _rope(1000000.0),
            "bos_token_id": 151643,
            "eos_token_id": 151643,
        },
        generation={
            "bos_token_id": 151643,
            "eos_token_id": 151643,
            "do_sample": False,
            "max_new_tokens": 2048,
        },
        narrow={
            "hidden_size": 256,
            "intermediate_size": 1024,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
        },
    ),
    "qwen3-0.6b": Shape(
        source="Qwen/Qwen3-0.6B",
        config={
            "model_type": "qwen3",
            "vocab_size": 151936,
            "hidden_size": 1024,
            "intermediate_size": 3072,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 40960,
            "rms_norm_eps": 1e-6,
            "max_window_layers": 28,
            "tie_word_embeddings": True,
            "rope_parameters": _rope(1000000.0),
            "bos_token_id": 151643,
            "eos_token_id": 151645,
        },
        generation={
            "bos_token_id": 151643,
            "eos_token_id": [151645, 151643],
            "pad_token_id": 151643,
            "do_sample": True,
            "temperature": 0.6,
            "top_k": 20,
            "top_p": 0.95,
        },
        narrow={
            "hidden_size": 256,
            "intermediate_size": 768,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
        },
    ),
    "mistral-7b": Shape(
        source="mistralai/Mistral-7B-v0.1",
        config={
            "model_type": "mistral",
            "vocab_size": 32000,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 32768,
            "sliding_window": 4096,
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": False,
            "rope_parameters": _rope(10000.0),
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        generation={"bos_token_id": 1, "eos_token_id": 2},
        # A window of 4,096 would never slide over the short prompts of a narrow model's tests.
        narrow={
            "hidden_size": 512,
            "intermediate_size": 1792,
            "num_attention_heads": 4,
            "num_key_value_heads": 1,
            "sliding_window": 64,
        },
        adds_bos=True,
    ),
    "gemma2-2b": Shape(
        source="google/gemma-2-2b",
        config={
            "model_type": "gemma2",
            "vocab_size": 256000,
            "hidden_size": 2304,
            "intermediate_size": 9216,
            "num_hidden_layers": 26,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "query_pre_attn_scalar": 256,
            "max_position_embeddings": 8192,
            "sliding_window": 4096,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
            "hidden_activation": "gelu_pytorch_tanh",
            "rms_norm_eps": 1e-6,
            "rope_parameters": _rope(10000.0),
            "bos_token_id": 2,
            "eos_token_id": 1,
            "pad_token_id": 0,
        },
        generation={"bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0},
        narrow={
            "hidden_size": 256,
            "intermediate_size": 1024,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "sliding_window": 64,
        },
        adds_bos=True,
    ),
    "gemma3-1b": Shape(
        source="google/gemma-3-1b-it",
        config={
            "model_type": "gemma3_text",
            "vocab_size": 262144,
            "hidden_size": 1152,
            "intermediate_size": 6912,
            "num_hidden_layers": 26,
            "num_attention_heads": 4,
            "num_key_value_heads": 1,
            "head_dim": 256,
            "query_pre_attn_scalar": 256,
            "max_position_embeddings": 32768,
            "sliding_window": 512,
            "hidden_activation": "gelu_pytorch_tanh",
            "rms_norm_eps": 1e-6,
            "rope_parameters": {
                "sliding_attention": _rope(10000.0),
                "full_attention": _rope(1000000.0),
            },
            "bos_token_id": 2,
            "eos_token_id": [1, 106],
            "pad_token_id": 0,
        },
        generation={
            "bos_token_id": 2,
            "eos_token_id": [1, 106],
            "pad_token_id": 0,
            "do_sample": True,
            "top_k": 64,
            "top_p": 0.95,
        },
        narrow={
            "hidden_size": 256,
            "intermediate_size": 1024,
            "num_attention_heads": 2,
            "sliding_window": 64,
        },
        adds_bos=True,
    ),
    "phi3-mini": Shape(
        source="microsoft/Phi-3-mini-4k-instruct",
        config={
            "model_type": "phi3",
            "vocab_size": 32064,
            "hidden_size": 3072,
            "intermediate_size": 8192,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "max_position_embeddings": 4096,
            "original_max_position_embeddings": 4096,
            "sliding_window": 2047,
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": False,
            "rope_parameters": _rope(10000.0),
            "bos_token_id": 1,
            "eos_token_id": 32000,
            "pad_token_id": 32000,
        },
        generation={
            "bos_token_id": 1,
            "eos_token_id": [32000, 32001, 32007],
            "pad_token_id": 32000,
        },
        narrow={
            "hidden_size": 384,
            "intermediate_size": 1024,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "sliding_window": 64,
        },
    ),
    "falcon-7b": Shape(
        source="tiiuae/falcon-7b",
        config={
            "model_type": "falcon",
            "vocab_size": 65024,
            "hidden_size": 4544,
            "num_hidden_layers": 32,
            "num_attention_heads": 71,
            "layer_norm_epsilon": 1e-5,
            "alibi": False,
            "bias": False,
            "multi_query": True,
            "new_decoder_architecture": False,
            "parallel_attn": True,
            "rope_parameters": _rope(10000.0),
            "bos_token_id": 11,
            "eos_token_id": 11,
        },
        generation={"bos_token_id": 11, "eos_token_id": 11},
        narrow={"hidden_size": 256, "ffn_hidden_size": 1024, "num_attention_heads": 4},
    ),
    "bloom-560m": Shape(
        source="bigscience/bloom-560m",
        config={
            "model_type": "bloom",
            "vocab_size": 250880,
            "hidden_size": 1024,
            "n_layer": 24,
            "n_head": 16,
            "layer_norm_epsilon": 1e-5,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 3,
        },
        generation={"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 3},
        narrow={"hidden_size": 256, "n_head": 4},
    ),
    "mixtral-8x7b": Shape(
        source="mistralai/Mixtral-8x7B-v0.1",
        config={
            "model_type": "mixtral",
            "vocab_size": 32000,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "max_position_embeddings": 32768,
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": False,
            "rope_parameters": _rope(1000000.0),
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        generation={"bos_token_id": 1, "eos_token_id": 2},
        narrow={
            "hidden_size": 256,
            "intermediate_size": 448,
            "num_attention_heads": 4,
            "num_key_value_heads": 1,
        },
        adds_bos=True,
    ),
}

ALIASES = {
    "gpt-neox": "pythia-160m",
    "gpt_bigcode-small": "tiny-starcoder",
    "llama": "tinyllama-1.1b",
    "falcon": "falcon-7b",
    "mixtral": "mixtral-8x7b",
}
"""Names of architectures for the one shape of theirs which is here."""


# --- configuration --------------------------------------------------------------------------


def find_shape(name: str) -> Shape:
    """The shape called ``name`` (or aliased so).

    Raises:
        ValueError: there is none; the message lists all.
    """
    try:
        return SHAPES[ALIASES.get(name, name)]
    except KeyError:
        known = ", ".join([*SHAPES, *ALIASES])
        raise ValueError(f"unknown shape {name!r}; known are {known}") from None


def make_config(shape: Shape, *, num_layers: int | None = None, narrow: bool = False) -> Any:
    """The Transformers configuration of ``shape``, with fewer layers or narrower if asked.

    Raises:
        ValueError: ``num_layers`` is below 1.
    """
    if num_layers is not None and num_layers < 1:
        raise ValueError(f"a model needs at least one layer, not {num_layers}")
    values = {**shape.config, **(shape.narrow if narrow else {})}
    layers_key = "n_layer" if "n_layer" in values else "num_hidden_layers"
    values[layers_key] = num_layers or values[layers_key]
    return AutoConfig.for_model(**values)


def check_size(config: Any, dtype: torch.dtype) -> None:
    """Refuse a model whose weights would not be reasonable on a disk.

    Raises:
        ValueError: the weights exceed ``MAX_BYTES``.
    """
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    size = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    if size > MAX_BYTES:
        raise ValueError(
            f"the weights would take {size / 1024**3:.1f} GiB, more than "
            f"{MAX_BYTES / 1024**3:.0f}: ask for fewer layers or the narrow preset"
        )


# --- weights --------------------------------------------------------------------------------


def weight_std(module: torch.nn.Module, weight: torch.Tensor, init_scale: float) -> float:
    """The spread to draw a matrix of ``module`` with.

    ``init_scale / sqrt(fan in)`` keeps a signal's variance through the layer. At real widths
    that is 0.016 (4,096) to 0.063 (256), which is where trained checkpoints lie as well.
    """
    if isinstance(module, torch.nn.Embedding):
        return EMBEDDING_STD
    # Conv1D (GPT-2) stores [in, out]; Linear and expert stacks store [..., out, in].
    fan_in = weight.shape[0] if isinstance(module, Conv1D) else weight.shape[-1]
    return init_scale / math.sqrt(fan_in)


@torch.no_grad()
def randomize(model: PreTrainedModel, seed: int, init_scale: float) -> None:
    """Overwrite every parameter of ``model`` in place.

    The numbers are drawn in float32 from one generator in the order of the modules, so a seed
    gives the same weights in every dtype, up to rounding. Vectors (biases, norm gains) keep
    their initial 0 or 1 plus a little noise. Tied matrices are drawn once, as embeddings.
    """
    generator = torch.Generator().manual_seed(seed)
    seen: set[int] = set()
    for module in model.modules():
        for weight in module.parameters(recurse=False):
            if id(weight) in seen:
                continue
            seen.add(id(weight))
            noise = torch.empty(weight.shape, dtype=torch.float32).normal_(generator=generator)
            if weight.dim() > 1:
                weight.copy_(noise * weight_std(module, weight, init_scale))
            else:
                weight.copy_(weight.float() + noise * VECTOR_STD)


@torch.no_grad()
def soften_embeddings(model: PreTrainedModel) -> None:
    """Undo in place what a family does to enlarge the embeddings before the first block.

    Gemma multiplies them by the root of the width, and BLOOM normalises them to a spread of 1:
    either way a model with random blocks and tied embeddings would repeat the prompt's last token.
    Gemma's final norm gets the factor instead, so that the spread of the logits stays.
    """
    if model.config.model_type.startswith("gemma"):
        factor = math.sqrt(model.config.hidden_size)
        model.get_input_embeddings().weight.div_(factor)
        gain = model.model.norm.weight  # stored less 1
        gain.add_(1).mul_(factor).sub_(1)
    elif model.config.model_type == "bloom":
        norm = model.transformer.word_embeddings_layernorm
        norm.weight.mul_(EMBEDDING_STD)
        norm.bias.mul_(EMBEDDING_STD)


# --- tokenizer ------------------------------------------------------------------------------


def special_token_ids(config: Any) -> dict[str, int]:
    """Which id each of the bundled tokenizer's special pieces gets in a model of ``config``.

    A role which shares its id with another (GPT-2's BOS is its EOS) shares the piece as well.
    Of several EOS ids the first is the tokenizer's.
    """
    eos = config.eos_token_id
    ids = {"</s>": eos[0] if isinstance(eos, Sequence) else eos}
    for piece, wanted in (("<s>", config.bos_token_id), ("<pad>", config.pad_token_id)):
        if wanted is not None and wanted not in ids.values():
            ids[piece] = wanted
    return ids


def move_pieces(vocabulary: dict[str, int], wanted: Mapping[str, int]) -> dict[str, int]:
    """Give the ``wanted`` pieces their ids; a piece which held such an id takes the old one."""
    vocabulary = dict(vocabulary)
    holders = {token: piece for piece, token in vocabulary.items()}
    for piece, token in wanted.items():
        old, holder = vocabulary[piece], holders.pop(token, None)
        vocabulary[piece], holders[token] = token, piece
        if holder is not None and holder != piece:
            vocabulary[holder], holders[old] = old, holder
    return dict(sorted(vocabulary.items(), key=lambda item: item[1]))


def bos_template(piece: str, token: int) -> dict[str, Any]:
    """The post-processor, in ``tokenizer.json``'s terms, which puts ``piece`` first."""
    bos = {"SpecialToken": {"id": piece, "type_id": 0}}
    first, second = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    return {
        "type": "TemplateProcessing",
        "single": [bos, first],
        "pair": [bos, first, bos, second],
        "special_tokens": {piece: {"id": piece, "ids": [token], "tokens": [piece]}},
    }


def role_pieces(config: Any) -> dict[str, str]:
    """``bos_token``, ``eos_token`` and ``pad_token`` of the tokenizer for a model of ``config``."""
    pieces = {token: piece for piece, token in special_token_ids(config).items()}
    roles = {"eos_token": "</s>"}
    for role in ("bos", "pad"):
        token = getattr(config, f"{role}_token_id")
        if token is not None:
            roles[f"{role}_token"] = pieces[token]
    if config.model_type == "qwen2":
        # The real tokenizer pads with EOS; without a choice its class would add a piece of its own.
        roles.setdefault("pad_token", roles["eos_token"])
    return roles


def write_tokenizer(config: Any, adds_bos: bool, directory: Path) -> None:
    """Copy the bundled tokenizer to ``directory`` with the special ids of ``config``.

    Raises:
        FileNotFoundError: the bundled model is missing.
    """
    tokenizer = json.loads((BUNDLED_MODEL / "tokenizer.json").read_text(encoding="utf-8"))
    settings = json.loads((BUNDLED_MODEL / "tokenizer_config.json").read_text(encoding="utf-8"))
    vocabulary = move_pieces(tokenizer["model"]["vocab"], special_token_ids(config))
    tokenizer["model"]["vocab"] = vocabulary
    for added in tokenizer["added_tokens"]:
        added["id"] = vocabulary[added["content"]]
    tokenizer["added_tokens"].sort(key=lambda added: added["id"])
    roles = role_pieces(config)
    bos = roles.get("bos_token")
    tokenizer["post_processor"] = bos_template(bos, vocabulary[bos]) if adds_bos and bos else None
    for role in ("bos_token", "eos_token", "pad_token"):
        settings.pop(role, None)
    settings |= roles
    # Bloom's ALiBi has no limit; it was trained on 2,048 tokens.
    settings["model_max_length"] = getattr(config, "max_position_embeddings", 2048)
    for name, content in (("tokenizer.json", tokenizer), ("tokenizer_config.json", settings)):
        text = json.dumps(content, indent=2, ensure_ascii=False)
        (directory / name).write_text(text + "\n", encoding="utf-8")


# --- the whole ------------------------------------------------------------------------------


def make_random_model(
    shape: str,
    directory: Path,
    *,
    seed: int = 0,
    dtype: str | torch.dtype = torch.bfloat16,
    num_layers: int | None = None,
    narrow: bool = False,
    init_scale: float = 1.0,
) -> Path:
    """Write a random model to ``directory`` (made if missing) and return ``directory``.

    Args:
        shape: a key of ``SHAPES`` or ``ALIASES``.
        directory: where to write; files of the same names are replaced.
        seed: the same seed, shape and sizes give the same bytes.
        dtype: of the stored weights, as torch's dtype or its name.
        num_layers: instead of the real number of layers.
        narrow: use the shape's preset of smaller width (the vocabulary keeps its size).
        init_scale: factor on the spread of every matrix but the embeddings.

    Raises:
        ValueError: unknown shape or dtype, no layers, or more weights than ``MAX_BYTES``.
        FileNotFoundError: the bundled tokenizer is missing.
    """
    facts = find_shape(shape)
    dtype = parse_dtype(dtype)
    config = make_config(facts, num_layers=num_layers, narrow=narrow)
    check_size(config, dtype)
    with torch.random.fork_rng(devices=[]):  # the initialisation to be overwritten draws too
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    randomize(model, seed, init_scale)
    soften_embeddings(model)
    model.generation_config = GenerationConfig(**facts.generation)
    directory.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(directory)
    write_tokenizer(config, facts.adds_bos, directory)
    return directory


def parse_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """``dtype`` as torch's object.

    Raises:
        ValueError: ``dtype`` names no floating-point type of torch.
    """
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise ValueError(f"{dtype!r} is no floating-point dtype of torch")
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line: write one model and say where it is."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("shape", choices=[*SHAPES, *ALIASES], metavar="SHAPE", help="which model")
    parser.add_argument("directory", type=Path, metavar="OUT_DIR", help="folder to write")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--layers", type=int, dest="num_layers", help="fewer layers than real")
    parser.add_argument("--narrow", action="store_true", help="smaller width than real")
    parser.add_argument("--init-scale", type=float, default=1.0)
    options = vars(parser.parse_args(arguments))
    try:
        written = make_random_model(options.pop("shape"), options.pop("directory"), **options)
    except ValueError as error:
        parser.error(str(error))
    print(f"wrote {written}")


if __name__ == "__main__":
    main()
