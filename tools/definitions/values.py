"""Other values of a field, for which definitions are compared."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedConfig
from transformers.activations import ACT2FN

from tools.definitions.ropes import other_ropes

Fields = dict[str, Any]


@dataclass(frozen=True)
class Change:
    """Another value of a field.

    Attributes:
        field: its name.
        label: the value, in a few words that do not depend on sizes.
        fields: what is changed, with what the value needs besides.
    """

    field: str
    label: str
    fields: Fields


_NEUTRAL = re.compile(
    r".*(_size|_dim|headdim|_rank|_width|_kernel|_token_ids?|dropout|_pdrop|_heads|_positions)"
    r"|.*(mtp|nextn|summary|logits_to_keep).*|max_position_embeddings|original_max_.*|max_seq_len"
    r"|num_(hidden_|ssm_)?layers|n_layers?|n_embd|n_head|n_inner|n_ctx|ffn_dim|d_model|expand"
    r"|(num_|n_|moe_num_)(routed_|local_)?experts|num_query_groups|mamba_(d_.*|expand|n_?groups)"
    r"|n_groups|conv_L_cache|.*chunk_size|chunk_size_.*|time_step_(min|max|floor|scale|init.*)"
    r"|initializer_range|init_std|router_(aux_loss_coef|jitter_noise)|layerdrop|pretraining_tp"
    r"|use_(cache|mamba_kernels|mambapy|associative_scan|mem_eff_path)|rescale_prenorm_residual"
    r"|output_.*|return_dict|is_(encoder_)?decoder|add_cross_attention|problem_type|dtype|seed"
    r"|model_type|architectures|transformers_version|id2label|label2id|num_labels|name_or_path"
    r"|pruned_heads|torch_dtype|tie_last_hidden_states|per_layer_config|full_attn_idxs"
)
"""Sizes, ids, and what matters only for training or beside the logits."""

_INTEGERS: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(
        ("num_experts_per_tok", "moe_k", "moe_topk", "top_k_experts", "num_experts_per_token"),
        (1, 2, 3),
    ),
    **dict.fromkeys(
        ("moe_layer_freq", "decoder_sparse_step", "interleave_moe_layer_step"), (1, 2, 3)
    ),
    **dict.fromkeys(("moe_layer_interval", "no_rope_layer_interval"), (1, 2, 3)),
    **dict.fromkeys(("first_k_dense_replace", "num_dense_layers"), (0, 1, 2)),
    **dict.fromkeys(("n_shared_experts", "num_shared_experts"), (1, 2, 3)),
    **dict.fromkeys(("moe_num_shared_experts", "moe_layer_start_index"), (0, 1, 2)),
    **dict.fromkeys(("n_group", "topk_group"), (1, 2, 4)),
    **dict.fromkeys(("global_attn_every_n_layers", "attn_layer_period"), (2, 3)),
    **dict.fromkeys(("attn_layer_offset", "expert_layer_offset"), (0, 1)),
    **dict.fromkeys(("max_window_layers", "num_kv_shared_layers"), (0, 1, 2)),
    "expert_layer_period": (2, 3),
    "moe_layer_end_index": (1, 2),
    "floor_scale": (8, 32),
    "query_pre_attn_scalar": (64, 512),
    "scale_emb": (6, 24),
    "dim_model_base": (64, 128),
}
_WORDS: dict[str, tuple[str, ...]] = {
    "topk_method": ("greedy", "group_limited_greedy", "noaux_tc"),
    "scoring_func": ("softmax", "sigmoid", "sqrtsoftplus"),
    "score_func": ("softmax", "sigmoid"),
    "expert_selection_fn": ("softmax", "sigmoid"),
    "position_embedding_type": ("rope", "nope"),
    "shared_expert_combination_strategy": ("average", "sum"),
}
_FROM_NONE: dict[str, tuple[Any, ...]] = {
    "final_logit_softcapping": (2.0, 5.0),
    "attn_logit_softcapping": (2.0, 5.0),
    "clip_qkv": (0.5, 1.0),
    "position_embedding_type": ("rope", "nope"),
    "num_ln_in_parallel_attn": (1, 2),
}
_LISTS: dict[str, tuple[list[Any], ...]] = {
    "mlp_only_layers": ([0], [1]),
    "moe_layers": ([1], [0, 1]),
    "time_step_limit": ([0.0, 0.5], [0.2, 1.0]),
}
_ACTIVATIONS = ("silu", "gelu", "relu", "gelu_pytorch_tanh")
_WINDOWS = ("sliding_window", "attention_chunk_size", "sliding_window_size")

_NEEDS: dict[str, Fields] = {
    "max_window_layers": {"use_sliding_window": True},
    "sliding_window": {"use_sliding_window": True, "max_window_layers": 2},
    "topk_group": {"n_group": 4},
    "topk_method": {"n_group": 4, "topk_group": 2},
    "n_group": {"topk_group": 1},
}
"""Fields without which another has no effect, or no meaning; where a configuration has them."""


def is_neutral(name: str) -> bool:
    """Whether a field says nothing of the function that a model is, beside its sizes."""
    return _NEUTRAL.fullmatch(name) is not None


def changes(name: str, config: PreTrainedConfig) -> list[Change]:
    """Return other values of a field; none where no value is known to try.

    Args:
        name: of the field.
        config: whose sizes the values are for.
    """
    fields = config.to_dict()
    if name in ("rope_parameters", "rope_scaling"):
        return [Change(name, label, own) for label, own in other_ropes(name, config)]
    if name == "use_sliding_window" and not fields[name]:
        return _windows_on(fields)
    needed = {one: value for one, value in _NEEDS.get(name, {}).items() if one in fields}
    return [
        Change(name, label, {**needed, name: value})
        for label, value in _others(name, fields.get(name), fields)
    ]


def _windows_on(fields: Fields) -> list[Change]:
    """Return windows in all layers, in some and in none: ``max_window_layers`` counts those that
    have none.
    """
    name = "use_sliding_window"
    own: Fields = {name: True}
    own["sliding_window"] = fields.get("sliding_window") or _window_of(fields)
    if "max_window_layers" not in fields:
        return [Change(name, "True", own)]
    counts = {"two layers": 2, "all layers": fields["num_hidden_layers"], "no layer": 0}
    return [
        Change(name, f"True, {label} without", {**own, "max_window_layers": count})
        for label, count in counts.items()
    ]


def _others(name: str, value: Any, fields: Fields) -> Iterator[tuple[str, Any]]:
    if name in _WINDOWS:
        yield from _other_windows(value, fields)
    elif isinstance(value, list | tuple):
        yield from _other_lists(name, [*value], fields)
    else:
        for other in _plain(name, value):
            yield _label(value, other), other


def _label(value: Any, other: Any) -> str:
    """Return another value in words; what a float is multiplied with, for it may follow from sizes
    (Granite's scale of scores in HyperCLOVA X).
    """
    if isinstance(value, float) and other in (value * 0.5, value * 2.0) and value:
        return "half" if other == value * 0.5 else "double"
    return repr(other)


def _plain(name: str, value: Any) -> list[Any]:
    if isinstance(value, bool):
        return [not value]
    if value is None:
        return [*_FROM_NONE.get(name, ())]
    if isinstance(value, str):
        known = _ACTIVATIONS if value in ACT2FN else _WORDS.get(name, ())
        return [one for one in known if one != value][:2]
    if name in _INTEGERS:
        return [one for one in _INTEGERS[name] if one != value][:2]
    return _other_numbers(name, value) if isinstance(value, float) else []


def _other_numbers(name: str, value: float) -> list[Any]:
    """Return other numbers: of constants in norms also a large one, which shows in any norm."""
    if re.search(r"(^|_)eps(ilon)?(_|$)", name):
        return [value * 10, 0.1]
    if "softcapping" in name:
        return [value / 8 or 2.0, None]
    return [value * 0.5, value * 2.0] if value else [0.5, 2.0]


def _window_of(fields: Fields) -> int:
    return max(16, int(fields.get("max_position_embeddings") or 512) // 16)


def _other_windows(value: Any, fields: Fields) -> Iterator[tuple[str, Any]]:
    if value:
        yield "None", None
        yield "half", max(8, value // 2)
    else:
        yield "a window", _window_of(fields)


def _other_lists(name: str, value: list[Any], fields: Fields) -> Iterator[tuple[str, Any]]:
    """Yield lists of other layers, or of other factors."""
    if name in _LISTS:
        for other in _LISTS[name]:
            if other != value:
                yield repr(other), other
    elif value and all(isinstance(one, float) for one in value):
        yield "half", [one * 0.5 for one in value]
        yield "double", [one * 2.0 for one in value]
    elif value and len(value) == fields.get("num_hidden_layers"):
        yield from _patterns(value, fields)


def _patterns(value: list[Any], fields: Fields) -> Iterator[tuple[str, Any]]:
    """Yield kinds of layers in other orders: each alone, and two in turn."""
    kinds = sorted(set(value), key=str, reverse=True)
    if "full_attention" in kinds and fields.get("sliding_window"):
        kinds = [*kinds, *({"sliding_attention"} - {*kinds})]
    if not all(isinstance(one, str | int) for one in kinds):
        return
    if {*kinds} <= {0, 1}:
        kinds = [1, 0]
    patterns = [[one] for one in kinds] + [[kinds[-1], kinds[0]]] * (len(kinds) > 1)
    for pattern in patterns:
        other = [pattern[i % len(pattern)] for i in range(len(value))]
        if other != value:
            yield f"all {pattern[0]}" if len(pattern) == 1 else "in turn", other
