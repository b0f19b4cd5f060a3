"""A layer that is not specified stops the start with its name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from tests.engines import MODEL
from vllm.config import CUDAGraphMode, VllmConfig, set_current_vllm_config
from vllm.deterministic.attention import PortableAttentionImpl
from vllm.deterministic.elementwise import PortableActivation
from vllm.deterministic.layers import use_portable_layers
from vllm.engine.arg_utils import EngineArgs
from vllm.fork_kernels.portable.norm import portable_rms_norm
from vllm.hf_layers.definition.bloom import BloomGELU
from vllm.model_executor.layers.activation import FatreluAndMul, SiluAndMul
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend
from vllm.v1.attention.backends.triton_attn import TritonAttentionBackend


def config(runner_type: str = "generate", layers: dict[str, Any] | None = None) -> Any:
    text_config = SimpleNamespace(tie_word_embeddings=False)
    return SimpleNamespace(
        model_config=SimpleNamespace(
            runner_type=runner_type, hf_text_config=text_config, max_model_len=64
        ),
        compilation_config=SimpleNamespace(
            static_forward_context=layers or {}, cudagraph_mode=CUDAGraphMode.NONE
        ),
        kv_transfer_config=None,
        parallel_config=SimpleNamespace(pipeline_parallel_size=1),
    )


class Block(nn.Module):
    """A model of one layer under a name."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.block = nn.ModuleDict({"layer": layer})


@pytest.mark.parametrize(
    ("layer", "sentence"),
    [
        (nn.Linear(4, 4), r"block\.layer \(Linear\): it is not specified"),
        (nn.Conv1d(4, 4, 1), r"block\.layer \(Conv1d\): it is not specified"),
        (nn.GRU(4, 4), r"block\.layer \(GRU\): it is not specified"),
    ],
)
def test_layers_with_weights(layer: nn.Module, sentence: str) -> None:
    with pytest.raises(ValueError, match=f"deterministic=True cannot compute {sentence}"):
        use_portable_layers(Block(layer), config())


def test_a_norm_over_a_part_of_a_row() -> None:
    with set_current_vllm_config(VllmConfig()):
        layer = RMSNorm(64, var_hidden_size=32)
    with pytest.raises(ValueError, match="a norm over a part of a row is not specified"):
        use_portable_layers(Block(layer), config())


def test_a_layer_that_two_others_share_is_replaced_for_both() -> None:
    with set_current_vllm_config(VllmConfig()):
        shared = SiluAndMul()
    model = nn.ModuleList([Block(shared), Block(shared)])
    use_portable_layers(model, config())
    layers = [block.get_submodule("block.layer") for block in model]
    assert layers[0] is layers[1] is not shared
    x = torch.linspace(-4, 4, 32).bfloat16().view(2, 16)
    expected = shared.forward_native(x).float()
    assert torch.allclose(layers[0](x).float(), expected, rtol=1e-2, atol=1e-3)


def test_a_norm_of_transformers_stays_and_has_a_portable_forward() -> None:
    layer = LlamaRMSNorm(64)
    model = Block(layer)
    for _ in range(2):  # models that hold other models come twice
        use_portable_layers(model, config())
    assert model.get_submodule("block.layer") is layer
    x = torch.linspace(-4, 4, 128).view(2, 64)
    with torch.inference_mode():
        assert torch.equal(layer(x), portable_rms_norm(x, layer.weight, layer.variance_epsilon))


def test_an_activation_that_is_not_known_is_left_to_the_check_of_operations() -> None:
    with set_current_vllm_config(VllmConfig()):
        layer = FatreluAndMul()
    model = Block(layer)
    use_portable_layers(model, config())
    assert model.get_submodule("block.layer") is layer


def test_bloom_has_the_gelu_that_hf_compat_gives_it() -> None:
    """Not the exact one, which is more than 1e-4 away at these numbers."""
    model = Block(BloomGELU())
    use_portable_layers(model, config())
    layer = model.get_submodule("block.layer")
    x = torch.linspace(-3, 3, 32)
    assert type(layer) is PortableActivation
    assert (
        (layer(x) - BloomGELU()(x)).abs().max()
        < 1e-6
        < 1e-4
        < (layer(x) - functional.gelu(x)).abs().max()
    )


def attention_numbers(backend: Any, **arguments: Any) -> dict[str, Any]:
    """Return those of the attention that takes the place of what a backend of vLLM has."""
    with set_current_vllm_config(EngineArgs(str(MODEL)).create_engine_config()):
        layer = Attention(4, 64, 0.1, 2, prefix="layer", attn_backend=backend, **arguments)
        use_portable_layers(nn.Module(), config(layers={"layer": layer}))
    assert type(layer.impl) is PortableAttentionImpl
    slopes, source = layer.impl._slopes, layer.impl._source
    compared = {"_slopes": None if slopes is None else slopes.tolist(), "_source": vars(source)}
    return vars(layer.impl) | compared


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"per_layer_sliding_window": 8},
        {"logits_soft_cap": 30.0},
        {"sinks": torch.ones(4)},
        {"alibi_slopes": [0.5, 0.25, 0.125, 0.0625]},
    ],
    ids=str,
)
def test_attention_has_the_same_numbers_on_a_gpu(arguments: dict[str, Any]) -> None:
    on_gpu = attention_numbers(TritonAttentionBackend, **arguments)
    assert on_gpu == attention_numbers(CPUAttentionBackend, **arguments)
    assert on_gpu["window"] == arguments.get("per_layer_sliding_window", 0)
    assert on_gpu["_soft_cap"] == arguments.get("logits_soft_cap", 0)


def test_other_attention() -> None:
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase

    class Recurrence(nn.Module, AttentionLayerBase):
        def get_attn_backend(self) -> Any: ...

        def get_kv_cache_spec(self, vllm_config: Any) -> Any: ...

    layers = {"model.layers.0.mixer": Recurrence()}
    with pytest.raises(ValueError, match=r"model\.layers\.0\.mixer \(Recurrence\): only causal"):
        use_portable_layers(nn.Module(), config(layers=layers))


def test_models_that_do_not_write() -> None:
    with pytest.raises(ValueError, match="only the logits of text are specified"):
        use_portable_layers(nn.Module(), config("pooling"))
