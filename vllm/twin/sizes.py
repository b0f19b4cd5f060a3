"""Makes the sizes of a configuration small, and leaves every other field as it is."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

Fields = dict[str, Any]
"""A configuration as config.json has it (``PreTrainedConfig.to_dict``)."""

VOCAB_SIZE = 384
MAX_WIDTH = 512
WINDOW = 16
CHUNK = 128  # vLLM asks that blocks of its cache divide it
ORIGINAL_LENGTH = 32
LONGEST_TEXT = 160
"""Tokens of the longest text with its answer; positions that a twin has room for at least."""

_EPSILON = re.compile(r"(^|_)eps(ilon)?$")
_LEAST_EPSILON = 0.01

_MAX_GROUP, _MAX_KEY_HEADS, _MIN_WIDTH, _MULTIPLE = 4, 2, 64, 64
_MAX_MULTIPLE = 4
_LARGE_HEAD = 128
_MAX_EXPERTS = 8

_HEADS = ("num_attention_heads", "n_head", "num_heads", "n_heads")
_KEY_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num")
_HIDDEN = (
    *("hidden_size", "n_embd", "d_model", "hidden_dim"),
    *("conv_dim", "conv_dim_out", "block_dim"),  # LFM2's layers
)
_WIDTHS = (
    *("intermediate_size", "n_inner", "ffn_dim", "d_ff", "ffn_hidden_size", "ffn_size"),
    *("moe_intermediate_size", "shared_expert_intermediate_size", "intermediate_size_mlp"),
    *("shared_intermediate_size", "dense_intermediate_size", "word_embed_proj_dim"),
    *("moe_shared_expert_intermediate_size", "expert_ffn_hidden_size", "q_lora_rank"),
    *("hidden_size_per_layer_input", "lru_width", "block_ff_dim", "feed_forward_hidden_size"),
    *(
        "expert_hidden_size",
        "embedding_size",
        "attention_hidden_size",
        "zero_expert_num",
        "mamba_intermediate_size",
    ),
)
_SCALED_COUNTS = ("mamba_n_heads", "mamba_num_heads", "linear_num_heads")
_OTHER_HEADS = (
    ("linear_num_value_heads", "linear_num_key_heads"),
    ("swa_num_attention_heads", "swa_num_key_value_heads"),  # MiMo-V2's layers with a window
)
_EXPERTS = (
    *("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"),
    *("num_routed_experts", "moe_num_primary_experts"),
)
_CHOSEN_EXPERTS = (
    *("num_experts_per_tok", "moe_topk", "moe_k", "top_k_experts", "num_experts_per_token"),
    "moe_num_active_primary_experts",
)
_VOCABULARIES = ("vocab_size", "vocab_size_per_layer_input")
_WINDOWS = (
    *("sliding_window", "window_size", "attention_window_size", "sliding_window_size"),
    "floor_scale",  # of Llama 4, which scales queries beyond it
)
_CHUNKS = ("attention_chunk_size",)
_POSITIONS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "max_sequence_length",
    "n_ctx",
)
_TRAINED = "original_max_position_embeddings"
PER_LAYER = "per_layer_config"
"""Fields of single layers, by their numbers (``HeterogeneousConfigMixin``)."""

PARTS = ("text_config", "vision_config", "audio_config", "llm_config", "thinker_config")

_CONVOLUTIONS = ("conv_kernel", "mamba_d_conv", "linear_conv_kernel_dim", "conv_L_cache")


def with_small_sizes(fields: Mapping[str, Any], max_model_len: int) -> Fields:
    """Return a configuration with small sizes in the same proportions.

    Heads keep their size, and so do ranks of latent attention, for which kernels are made.

    Args:
        fields: of the model, or of its text part.
        max_model_len: of the engine; a limit that no text of the engine comes to (a window, a
            length that ropes were trained with) is one that no text of the twin comes to.
    """
    small = dict(fields)
    ratio = _shrink_heads(small, _HEADS, _KEY_HEADS)
    for name, key_name in _OTHER_HEADS:
        _shrink_heads(small, (name,), (key_name,))
    _shrink_widths(small, ratio)
    _shrink_experts(small)
    _shrink_positions(small, max_model_len)
    _shrink_windows(small, max_model_len)
    _shrink_vocabulary(small)
    _raise_epsilons(small)
    for part in PARTS:
        if isinstance(small.get(part), Mapping):
            small[part] = with_small_sizes(small[part], max_model_len)
    return small


def _first(fields: Fields, names: tuple[str, ...]) -> str | None:
    return next((name for name in names if isinstance(fields.get(name), int)), None)


def _first_value(fields: Fields, names: tuple[str, ...]) -> int:
    name = _first(fields, names)
    return fields[name] if name else 1


def _shrink_heads(small: Fields, names: tuple[str, ...], key_names: tuple[str, ...]) -> float:
    """Make heads few; return by what the width shrinks with them."""
    name = _first(small, names)
    if name is None:
        return 1.0
    heads: int = small[name]
    key_name = _first(small, key_names)
    key_heads: int = small[key_name] if key_name else heads
    if heads % key_heads:
        return 1.0
    group = heads // key_heads
    size = small.get("head_dim") or 1
    most = _MAX_GROUP if size <= _LARGE_HEAD else _MAX_GROUP // 2
    new_group = _divisor(group, most)
    new_key_heads = min(key_heads, _MAX_KEY_HEADS if group > 1 else most)
    small[name] = new_group * new_key_heads
    if key_name:
        small[key_name] = new_key_heads
        _shrink_heads_of_layers(small, key_name, small[name], heads)
    return float(small[name] / heads)


def _shrink_heads_of_layers(small: Fields, name: str, new_heads: int, heads: int) -> None:
    """Make heads of keys fewer where single layers have another number of them."""
    if isinstance(small.get(PER_LAYER), Mapping):
        small[PER_LAYER] = {
            layer: {**own, name: _divisor(new_heads, max(1, own[name] * new_heads // heads))}
            if name in own
            else own
            for layer, own in small[PER_LAYER].items()
        }


def _divisor(number: int, most: int) -> int:
    """Return the largest divisor up to a limit; the number itself if it is a small prime."""
    found = max(i for i in range(1, most + 1) if number % i == 0)
    return number if found == 1 and number <= 2 * most else found


def _shrink_widths(small: Fields, ratio: float) -> None:
    """Widths that are equal stay equal; that of the hidden states shrinks as heads do."""
    made: dict[int, int] = {}
    for name in _present(small, _HIDDEN):
        exact = small[name] * ratio
        is_of_heads = _is_of_heads(small, small[name], ratio) and exact == int(exact)
        free = _shared_width(exact, small[name], _first_value(small, _HEADS))
        made[small[name]] = int(exact) if is_of_heads else free
        small[name] = made[small[name]]
    for name in _present(small, _WIDTHS):
        small[name] = _each(small[name], lambda width: _width(width, ratio, made))
    for name in _present(small, _SCALED_COUNTS):
        small[name] = max(1, round(small[name] * ratio))


def _is_of_heads(small: Fields, width: int, ratio: float) -> bool:
    """Whether the width of the hidden states is that of all heads, which were made fewer."""
    heads, size = _first(small, _HEADS), small.get("head_dim")
    return size is None or heads is None or size * small[heads] == width * ratio


def _present(fields: Fields, names: tuple[str, ...]) -> list[str]:
    return [name for name in names if isinstance(fields.get(name), int | list)]


def _width(width: int, ratio: float, made: dict[int, int]) -> int:
    """Multiples of the hidden states' width stay multiples: some classes know no other."""
    if width and width not in made:
        multiples = [
            new * (width // old)
            for old, new in made.items()
            if width % old == 0 and width // old <= _MAX_MULTIPLE
        ]
        made[width] = multiples[0] if multiples else min(_rounded(width * ratio), MAX_WIDTH, width)
    return made.get(width, width)


def _shared_width(width: float, most: int, heads: int) -> int:
    """Return about that width, a multiple of the heads, which configurations ask for, also where a
    head has a size of its own.
    """
    found = _rounded(width, math.lcm(_MULTIPLE, heads))
    most = min(MAX_WIDTH, most)
    return found if found <= most else most // heads * heads


def _rounded(width: float, multiple: int = _MULTIPLE) -> int:
    return max(_MIN_WIDTH, math.ceil(width / multiple) * multiple)


def _each(value: Any, change: Callable[[int], int]) -> Any:
    """Return a number changed, or a list of numbers; anything else as it is."""
    if isinstance(value, list):
        return [_each(one, change) for one in value]
    return change(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _shrink_experts(small: Fields) -> None:
    """Keep how many experts a token has, and their groups."""
    chosen = max((small[name] for name in _present(small, _CHOSEN_EXPERTS)), default=1)
    groups = small.get("n_group") or 1
    enough = math.ceil(max(_MAX_EXPERTS, chosen + 1, 2 * groups) / groups) * groups
    for name in _present(small, _EXPERTS):
        small[name] = _each(small[name], lambda n: min(n, enough))


def has_experts(fields: Mapping[str, Any]) -> bool:
    """Return whether tokens choose among experts, in any part of a model."""
    return any(
        has_experts(value)
        if isinstance(value, Mapping)
        else "expert" in str(name) and isinstance(value, int) and value > 1
        for name, value in fields.items()
    )


def has_states(fields: Mapping[str, Any]) -> bool:
    """Return whether layers keep a state in the place of keys and values, in any part of a model.

    All of them have a convolution over the last tokens.
    """
    return any(
        has_states(value) if isinstance(value, Mapping) else name in _CONVOLUTIONS
        for name, value in fields.items()
    )


def _shrink_windows(small: Fields, max_model_len: int) -> None:
    for names, size in ((_WINDOWS, WINDOW), (_CHUNKS, CHUNK)):
        for name in _present(small, names):
            small[name] = _each(small[name], partial(_window, size, max_model_len))


def _window(size: int, max_model_len: int, window: int) -> int:
    return window if window <= size or window >= max_model_len else size


def _shrink_positions(small: Fields, max_model_len: int) -> None:
    """Keep what a rope stretches its positions by, and whether texts come to where it does."""
    lengths = [small[name] for name in _present(small, _POSITIONS)]
    trained = _trained_lengths(small)
    if not trained and _is_dynamic(small):
        trained = lengths[:1]
    passes = any(length < max_model_len for length in trained)
    most = max(lengths, default=0)
    factor = max([1.0, *(most / length for length in trained)])
    factors = [own for rope in _ropes(small) if isinstance(own := rope.get("factor"), float | int)]
    stretch = max(1.0, min(factors, default=factor))
    original = max(ORIGINAL_LENGTH, math.ceil(LONGEST_TEXT / stretch)) if passes else LONGEST_TEXT
    for name in _present(small, _POSITIONS):
        longest = small[name]
        small[name] = min(longest, math.ceil(original * factor) if trained else 2 * LONGEST_TEXT)
    for owner in (small, *_ropes(small)):
        if isinstance(owner.get(_TRAINED), int):
            owner[_TRAINED] = original


def _ropes(small: Fields) -> list[Fields]:
    """Return the parameters of ropes, of which there may be one for each kind of layer; copies, in
    the place of what was there.
    """
    found = []
    for name in ("rope_parameters", "rope_scaling"):
        if isinstance(small.get(name), Mapping):
            small[name] = dict(small[name])
            found.append(small[name])
            for kind, own in small[name].items():
                if isinstance(own, Mapping):
                    small[name][kind] = dict(own)
                    found.append(small[name][kind])
    return found


def limits_of_texts(fields: Mapping[str, Any]) -> dict[str, int]:
    """Return by its field what texts may come to that changes how they are computed."""
    own = dict(fields)
    found = {name: own[name] for name in _present(own, (*_WINDOWS, *_CHUNKS))}
    for owner in (own, *_ropes(own)):
        found |= {name: owner[name] for name in _present(owner, (_TRAINED,))}
    if _is_dynamic(own):
        found |= {name: own[name] for name in _present(own, _POSITIONS)}
    return {name: limit for name, limit in found.items() if isinstance(limit, int)}


def passed_lengths(fields: Mapping[str, Any], max_model_len: int) -> list[int]:
    """Return all that a twin knows of a longest text: the lengths of windows, chunks and positions,
    of all parts of a model, that it passes, and its own if that is short.
    """
    names = (*_WINDOWS, *_CHUNKS, *_POSITIONS, _TRAINED)
    lengths = {length for length in _lengths(fields, names) if length < max_model_len}
    return sorted(lengths | {min(max_model_len, LONGEST_TEXT)})


def _lengths(fields: Mapping[str, Any], names: tuple[str, ...]) -> Iterator[int]:
    for name, value in fields.items():
        if isinstance(value, Mapping):
            yield from _lengths(value, names)
        elif name in names:
            lengths = value if isinstance(value, list) else [value]
            yield from (one for one in lengths if isinstance(one, int))


def _raise_epsilons(small: Fields) -> None:
    """Let each epsilon count beside a twin's activations, which are not as small as a model's: it
    would not show which norms have it (latent attention's have their own).
    """
    for name, value in small.items():
        if isinstance(value, float) and _EPSILON.search(name):
            small[name] = max(value, _LEAST_EPSILON)


def _trained_lengths(small: Fields) -> list[int]:
    owners = (small, *_ropes(small))
    return [one[_TRAINED] for one in owners if isinstance(one.get(_TRAINED), int)]


def _is_dynamic(small: Fields) -> bool:
    kinds = {rope.get("rope_type", rope.get("type")) for rope in _ropes(small)}
    return bool(kinds & {"dynamic", "yarn"})


def _shrink_vocabulary(small: Fields) -> None:
    """Ids of special tokens stay different from each other, at the vocabulary's end."""
    text = small.get("text_config")
    owners = (small, dict(text) if isinstance(text, Mapping) else {})
    sizes = [owner[name] for owner in owners for name in _present(owner, _VOCABULARIES)]
    if not sizes:
        return
    size = min(VOCAB_SIZE, *sizes)
    moved: dict[int, int] = {}

    def move(token: int) -> int:
        if token < size:
            return token
        return moved.setdefault(token, size - 1 - len(moved))

    for name in [one for one in small if _names_tokens(one)]:
        small[name] = _each(small[name], move)
    for name in _present(small, _VOCABULARIES):
        small[name] = size


def _names_tokens(name: str) -> bool:
    return name.endswith(("token_id", "token_index", "token_ids", "tokens_ids"))
