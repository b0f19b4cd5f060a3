"""Fields of a configuration at which vLLM's class of a model stops, and which the flags honour.

The class is shown another value. `asked_for` tells what the model's configuration says, for the
hooks that then make its layers so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.fork.flags.fork_flags import ForkFlags

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from vllm.config import VllmConfig
    from vllm.engine.arg_utils import EngineArgs

_KEPT = "fork_fields_asked_for"
"""Attribute of a configuration: the fields that were changed, as they were."""


_TUNING = "attn_temperature_tuning"
"""Whether Llama 4 scales queries by their positions."""

_ORIGINAL = "original_max_position_embeddings"

_RENAMED = {"PhimoeForCausalLM": "PhiMoEForCausalLM"}
"""Classes of Transformers, as ``save_pretrained`` names them, that vLLM knows by the name that the
model was published with. It would run them through its Transformers backend, which fails.
"""


def use_published_name(args: EngineArgs, config: PreTrainedConfig) -> None:
    """Let vLLM find its class of a model that Transformers has saved, in place."""
    names = [_RENAMED.get(one, one) for one in config.architectures or []]
    if names != (config.architectures or []) and isinstance(args.hf_overrides, dict):
        args.hf_overrides = {**args.hf_overrides, "architectures": names}


def change_fields(vllm_config: VllmConfig) -> None:
    """Give the fields at which vLLM's class stops a value that it takes, in place."""
    flags = ForkFlags.of(vllm_config)
    if not flags.has_hf_definition or flags.hf_compat == "exact":
        return
    config = vllm_config.model_config.hf_text_config
    for name, value in _implied(config).items():
        if getattr(config, name, None) is None:
            setattr(config, name, value)
    taken = _values_taken(config)
    asked = {name: getattr(config, name) for name in taken if hasattr(config, name)}
    if changed := {name: one for name, one in asked.items() if one != taken[name]}:
        setattr(config, _KEPT, {**getattr(config, _KEPT, {}), **changed})
        for name in changed:
            setattr(config, name, taken[name])
    if config.model_type == "llama4_text":
        # Else vLLM's class does so where texts may have more than 32,768 tokens, and nowhere else.
        vllm_config.model_config.override_generation_config |= {
            _TUNING: bool(getattr(config, _TUNING, False))
        }
    elif config.model_type == "ministral3":
        original = config.rope_parameters[_ORIGINAL]
        if vllm_config.model_config.max_model_len > original:  # shorter texts have scales of 1
            # The name in Mistral's own format, the only one that vLLM reads.
            beta = config.rope_parameters["llama_4_scaling_beta"]
            config.llama_4_scaling = {_ORIGINAL: original, "beta": beta}


def asked_for(config: PreTrainedConfig, name: str) -> Any:
    """Return a field as the model's configuration has it; None if it has none."""
    return getattr(config, _KEPT, {}).get(name, getattr(config, name, None))


def _implied(config: PreTrainedConfig) -> dict[str, Any]:
    """Return fields that vLLM's class needs, and that Transformers saves a new model without, since
    it computes in one way.
    """
    if config.model_type == "deepseek_v3":
        return {"topk_method": "noaux_tc", "scoring_func": "sigmoid"}
    if config.model_type == "minimax_m2":
        part = config.rope_parameters.get("partial_rotary_factor", 1.0)
        rotated = int(config.head_dim * part)
        return {"scoring_func": "sigmoid", "use_routing_bias": True, "rotary_dim": rotated}
    if config.model_type == "glm4_moe_lite":
        return {"first_k_dense_replace": [*config.mlp_layer_types, "sparse"].index("sparse")}
    if config.model_type == "lfm2":
        return {"conv_dim": config.hidden_size, "block_dim": config.hidden_size}
    if config.model_type == "afmoe":
        return {"score_func": "sigmoid", "route_norm": True, "n_group": 1, "topk_group": 1}
    return {}


def _values_taken(config: PreTrainedConfig) -> dict[str, Any]:
    """Return the fields at which vLLM's class may stop, with what it goes on with."""
    if config.model_type == "gpt2":
        # The second one is of eager attention alone: rounding, and no other function.
        return {"scale_attn_by_inverse_layer_idx": False, "reorder_and_upcast_attn": False}
    if config.model_type in ("qwen2", "qwen3"):
        # By now it has decided layer_types, and Transformers does not look at it again.
        return {"max_window_layers": config.num_hidden_layers}
    if config.model_type in ("deepseek_v2", "deepseek_v3"):
        return {"moe_layer_freq": 1}  # a field that Transformers does not know
    return {}
