"""What is to be known of each type of models: one row, by the ``model_type`` of its configuration.

A type without a row has vLLM's class as it is, with the layers that all models have. What takes
more than a value is a module of `vllm.hf_layers.definition`, which the row names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

Value = Any | Callable[["PreTrainedConfig"], Any]
"""Of a field, or what computes it of a configuration."""


@dataclass(frozen=True)
class MixerFormula:
    """How the mixers of Mamba 2 differ between types of models.

    Attributes:
        limits: field of the configuration with both limits of the time step.
        least: field with the lower limit alone.
        has_groups: whether the norm is over the heads of a group.
        norm_first: field that says whether the norm comes before the gate.
        epsilon: of the norm; None for that of vLLM's layer.
    """

    limits: str = ""
    least: str = ""
    has_groups: bool = False
    norm_first: str = ""
    epsilon: float | None = None


@dataclass(frozen=True)
class ModelFacts:
    """A type of models.

    Attributes:
        definition: module of `vllm.hf_layers.definition` that mends vLLM's class: its ``mend``
            changes a new model, its ``configure`` the configuration of an engine.
        implied: fields that vLLM's class needs, and that Transformers saves a new model without,
            since it computes in one way.
        taken: fields at which vLLM's class stops, with what it goes on with; `definition` then
            makes the model as it was asked for.
        refused: fields that no twin can show, with what Transformers does with them.
        renamed: classes of Transformers, as ``save_pretrained`` names them, that vLLM knows by the
            name that the model was published with. It would run them through its Transformers
            backend, which fails.
        has_windows_by_layer: whether layers have a window by ``layer_types`` in Transformers, and
            not in vLLM.
        has_constant_epsilon: whether vLLM has 1e-5 in norms, whatever ``rms_norm_eps`` is.
        products: the class that projections have in Transformers.
        attention: how scores are made; "sdpa" is ``sdpa_attention_forward``.
        scales_query: whether queries are multiplied with the scale, in their dtype, before.
        mixture: "plain" if experts in Transformers are a ``gate`` that routes, and ``experts`` with
            all weights in two tensors, with nothing but reshapes around them; "shared" if there is
            an expert for all tokens as well, whose layers vLLM computes.
        mixer: the formula of its mixers of Mamba 2, if it has them.
        rounds_router_logits: whether the logits of its routers, and their corrections, are in the
            model's dtype; vLLM keeps them in float32.
    """

    definition: str = ""
    implied: Mapping[str, Value] = field(default_factory=dict)
    taken: Mapping[str, Value] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)
    has_windows_by_layer: bool = False
    has_constant_epsilon: bool = False
    products: Literal["linear", "conv1d", "added_bias"] = "linear"
    attention: Literal["sdpa", "alibi", "multi_query"] = "sdpa"
    scales_query: bool = False
    mixture: Literal["", "plain", "shared"] = ""
    mixer: MixerFormula | None = None
    rounds_router_logits: bool = False


def _first_sparse_layer(config: PreTrainedConfig) -> int:
    return [*config.mlp_layer_types, "sparse"].index("sparse")


def _rotated_part(config: PreTrainedConfig) -> int:
    return int(config.head_dim * config.rope_parameters.get("partial_rotary_factor", 1.0))


_BY_GROUPS = {"moe_layer_freq": 1}
"""A field of DeepSeek's own code, which Transformers does not know."""

# By now vLLM has decided layer_types, and Transformers does not look at the field again.
_ALL_LAYERS = {"max_window_layers": lambda config: config.num_hidden_layers}

ROWS: dict[str, ModelFacts] = {
    "afmoe": ModelFacts(
        implied={"score_func": "sigmoid", "route_norm": True, "n_group": 1, "topk_group": 1}
    ),
    "apertus": ModelFacts(definition="apertus"),
    "bloom": ModelFacts(definition="bloom", attention="alibi"),
    "cohere2": ModelFacts(has_windows_by_layer=True),
    "cohere2_moe": ModelFacts(has_windows_by_layer=True),
    "deepseek_v2": ModelFacts(taken=_BY_GROUPS),
    "deepseek_v3": ModelFacts(
        implied={"topk_method": "noaux_tc", "scoring_func": "sigmoid"}, taken=_BY_GROUPS
    ),
    "falcon": ModelFacts(
        definition="falcon",
        products="added_bias",
        attention="multi_query",
        refused={
            "alibi": "whose slopes and distances build_alibi_tensor() rounds to bfloat16, and "
            "vLLM does not"
        },
    ),
    "falcon_h1": ModelFacts(
        mixer=MixerFormula(
            limits="time_step_limit", has_groups=True, norm_first="mamba_norm_before_gate"
        )
    ),
    "flex_olmo": ModelFacts(mixture="plain"),
    "gemma3n_text": ModelFacts(definition="gemma3n"),
    "glm4_moe_lite": ModelFacts(implied={"first_k_dense_replace": _first_sparse_layer}),
    "gpt2": ModelFacts(
        definition="gpt2",
        # The second one is of eager attention alone: rounding, and no other function.
        taken={"scale_attn_by_inverse_layer_idx": False, "reorder_and_upcast_attn": False},
        products="conv1d",
    ),
    "gpt_oss": ModelFacts(has_windows_by_layer=True, has_constant_epsilon=True),
    "granitemoehybrid": ModelFacts(mixer=MixerFormula(limits="time_step_limit")),
    "hy_v3": ModelFacts(
        implied={
            "qk_norm": True,
            "route_norm": True,
            "first_k_dense_replace": _first_sparse_layer,
            "expert_hidden_dim": lambda config: config.moe_intermediate_size,
        }
    ),
    "lfm2": ModelFacts(
        implied={
            "conv_dim": lambda config: config.hidden_size,
            "block_dim": lambda config: config.hidden_size,
        }
    ),
    "llama4_text": ModelFacts(definition="llama4"),
    "mamba2": ModelFacts(mixer=MixerFormula(limits="time_step_limit")),
    "minimax_m2": ModelFacts(
        implied={"scoring_func": "sigmoid", "use_routing_bias": True, "rotary_dim": _rotated_part},
        rounds_router_logits=True,
    ),
    "ministral3": ModelFacts(definition="ministral3"),
    "mixtral": ModelFacts(mixture="plain"),
    "nemotron_h": ModelFacts(mixer=MixerFormula(least="time_step_min", has_groups=True)),
    "olmo_hybrid": ModelFacts(definition="olmo_hybrid"),
    "olmoe": ModelFacts(has_constant_epsilon=True, mixture="plain"),
    "opt": ModelFacts(scales_query=True),
    "phimoe": ModelFacts(definition="phimoe", renamed={"PhimoeForCausalLM": "PhiMoEForCausalLM"}),
    "qwen2": ModelFacts(taken=_ALL_LAYERS, has_windows_by_layer=True),
    "qwen2_moe": ModelFacts(has_windows_by_layer=True, mixture="shared"),
    "qwen3": ModelFacts(taken=_ALL_LAYERS, has_windows_by_layer=True),
    "qwen3_moe": ModelFacts(mixture="plain"),
    "stablelm": ModelFacts(definition="stablelm"),
    "xglm": ModelFacts(scales_query=True),
    "zamba2": ModelFacts(mixer=MixerFormula(least="time_step_min", has_groups=True, epsilon=1e-5)),
}

_OF_OTHERS = ModelFacts()


def facts_of(config: PreTrainedConfig) -> ModelFacts:
    """Return what is known of the type of a model; `config` is that of its text part."""
    return ROWS.get(config.model_type, _OF_OTHERS)


def values_of(fields: Mapping[str, Value], config: PreTrainedConfig) -> dict[str, Any]:
    """Return the values of `implied` or `taken` for a configuration."""
    return {name: one(config) if callable(one) else one for name, one in fields.items()}
