"""Layers with states: what each computes of a step, what is kept for it, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tests.deterministic.states_models import config_of, write_model
from tests.kernels.portable_cases import assert_same, numbers
from vllm.deterministic.states.engine import check_states

MIXER = {
    "hidden_size": 64,
    "ssm_state_size": 16,
    "conv_kernel_size": 4,
    "intermediate_size": 128,
    "use_conv_bias": True,
    "use_bias": False,
    "n_groups": 2,
    "num_heads": 4,
    "head_dim": 32,
}
TOKENS = 12


@pytest.fixture(scope="module", params=["bfloat16", "float16"])
def configured(
    one_rank: None, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    """The configuration of an engine of Mamba 2, while layers are made."""
    from vllm.config import set_current_vllm_config
    from vllm.engine.arg_utils import EngineArgs

    folder = tmp_path_factory.mktemp("models") / "mamba2"
    write_model("mamba2", folder)
    args = EngineArgs(
        str(folder),
        dtype=request.param,
        deterministic=True,
        hf_compat="rules",
        max_model_len=64,
        skip_tokenizer_init=True,
    )
    config = args.create_engine_config()
    with set_current_vllm_config(config):
        yield config


@pytest.fixture(autouse=True)
def no_layers(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let each test make layers of the same names."""
    yield
    if "configured" in request.fixturenames:
        layers = request.getfixturevalue("configured").compilation_config.static_forward_context
        layers.clear()


def mixer(config: Any, **arguments: Any) -> Any:
    from vllm.model_executor.layers.mamba.mamba_mixer2 import MambaMixer2

    settings = {"model_config": config.model_config, "cache_config": config.cache_config}
    return made(config, lambda: MambaMixer2(**(MIXER | settings | arguments), prefix="mixer"))


def delta_net(config: Any, name: str, **arguments: Any) -> Any:
    from vllm.model_executor.layers.mamba.gdn import olmo_gdn_linear_attn, qwen_gdn_linear_attn

    of_model = config_of(name)
    of_model.update({"hidden_size": 64} | arguments)
    if name == "olmo_hybrid":
        kind: Any = olmo_gdn_linear_attn.OlmoHybridGatedDeltaNetAttention
        return made(config, lambda: kind(of_model, config, prefix="layers.0.mixer"))
    kind = qwen_gdn_linear_attn.QwenGatedDeltaNetAttention
    is_next = name == "qwen3_next"
    return made(
        config,
        lambda: kind(of_model, config, prefix="layers.0.mixer", gqa_interleaved_layout=is_next),
    )


def short_conv(config: Any) -> Any:
    from vllm.model_executor.layers.mamba.short_conv import ShortConv

    of_model = SimpleNamespace(conv_L_cache=3, conv_bias=True)
    return made(
        config,
        lambda: ShortConv(of_model, 64, 0, config.model_config, config.cache_config, prefix="conv"),
    )


def made(config: Any, make: Callable[[], Any]) -> Any:
    """Return a layer in the dtype of an engine, as models make it."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(config.model_config.dtype)
    try:
        return make()
    finally:
        torch.set_default_dtype(default)


MAKERS: dict[str, Callable[[Any], Any]] = {
    "mamba2": mixer,
    "no-norm": lambda config: mixer(config, use_rms_norm=False),
    "qwen3_next": lambda config: delta_net(config, "qwen3_next"),
    "qwen3_5_text": lambda config: delta_net(config, "qwen3_5_text"),
    "olmo_hybrid": lambda config: delta_net(config, "olmo_hybrid"),
    "lfm2": short_conv,
}


@torch.no_grad()
def loaded(config: Any, name: str) -> Any:
    """Return a layer with weights and portable bits, and memory for states of two requests."""
    from vllm.deterministic.layers import use_portable_layers
    from vllm.model_executor.layers.linear import LinearBase

    layer = MAKERS[name](config)
    use_portable_layers(nn.ModuleDict({"layer": layer}), config)
    for i, weight in enumerate(layer.parameters()):
        weight.copy_(numbers(*weight.shape, seed=i, scale=0.5))
    for module in layer.modules():
        if isinstance(module, LinearBase):
            module.quant_method.process_weights_after_loading(module)
    forms = zip(layer.get_state_shape(), layer.get_state_dtype(), strict=True)
    layer.kv_cache = tuple(torch.full((3, *shape), torch.nan, dtype=d) for shape, d in forms)
    return layer


def step(config: Any, layer: Any, x: torch.Tensor, *requests: tuple[int, int, bool]) -> Any:
    """Compute a step of requests: a block, a number of tokens, and whether others came before."""
    from vllm.deterministic.guard import only_exact_operations
    from vllm.deterministic.states.metadata import StatesMetadata
    from vllm.forward_context import set_forward_context

    slots, counts, has_state = zip(*requests, strict=True)
    starts = torch.tensor([0, *counts]).cumsum(0).int()
    metadata = StatesMetadata(
        torch.tensor(slots, dtype=torch.int32), starts, torch.tensor(has_state)
    )
    with (
        torch.no_grad(),
        set_forward_context({layer.prefix: metadata}, config, num_tokens=len(x)),
        only_exact_operations("a layer with states"),
    ):
        return called(layer, x)


def called(layer: Any, x: torch.Tensor) -> torch.Tensor:
    if type(layer).__name__ in ("OlmoHybridGatedDeltaNetAttention", "ShortConv"):
        output = torch.empty_like(x)
        layer(x, output)
        return output
    return layer(x)


# --- a step ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", MAKERS)
def test_a_text_whole_in_parts_and_beside_another(configured: Any, name: str) -> None:
    layer = loaded(configured, name)
    dtype = configured.model_config.dtype
    x = numbers(TOKENS, 64, seed=1, dtype=dtype)
    other = numbers(5, 64, seed=2, dtype=dtype)
    whole = step(configured, layer, x, (1, TOKENS, False))
    kept = [state[1].clone() for state in layer.kv_cache]
    assert bool(whole.isfinite().all())
    assert all(bool(state.isfinite().all()) for state in kept)

    both = torch.cat([other, x[:7]])
    first = step(configured, layer, both, (0, 5, False), (2, 7, False))[5:]
    rest = [step(configured, layer, x[i : i + 1], (2, 1, True)) for i in range(7, TOKENS)]
    assert_same(torch.cat([first, *rest]), whole)
    for state, expected in zip(layer.kv_cache, kept, strict=True):
        assert_same(state[2], expected)
    after = step(configured, layer, x, (2, TOKENS, True))
    assert not torch.equal(after, whole)  # the state counts


@pytest.mark.parametrize("name", MAKERS)
def test_layers_that_are_tried_out(configured: Any, name: str) -> None:
    """Without requests, and operations that are no operators of the specification."""
    from vllm.deterministic.guard import only_exact_operations
    from vllm.forward_context import set_forward_context

    layer = loaded(configured, name)
    x = numbers(3, 64, seed=1, dtype=configured.model_config.dtype)
    with (
        torch.no_grad(),
        set_forward_context(None, configured, num_tokens=3),
        only_exact_operations("a layer with states"),
    ):
        assert called(layer, x).shape == (3, 64)


# --- what is kept ---------------------------------------------------------------------------------
def test_states_of_a_mixer(configured: Any) -> None:
    layer = loaded(configured, "mamba2")
    dtype = configured.model_config.dtype
    spec = layer.get_kv_cache_spec(configured)
    assert spec.shapes == ((3, 128 + 2 * 2 * 16), (4, 16, 32))
    assert spec.dtypes == (dtype, torch.float32)
    assert configured.cache_config.mamba_ssm_cache_dtype == "float32"


def test_logarithms_have_the_dtype_of_the_model(configured: Any) -> None:
    """As in Transformers; vLLM's loader would take PyTorch's exponential."""
    from vllm.deterministic.layers import use_portable_layers

    layer = mixer(configured)
    use_portable_layers(nn.ModuleDict({"layer": layer}), configured)
    logarithms = numbers(4, seed=3)
    layer.A.weight_loader(layer.A, logarithms)
    assert_same(layer.A.data, logarithms.to(configured.model_config.dtype))


def test_weights_of_convolutions_stay(configured: Any) -> None:
    layer = loaded(configured, "mamba2")
    assert layer.conv1d.weight.shape == (192, 1, 4)
    assert layer.in_proj.weight.numel() == 0  # packed
    with pytest.raises(RuntimeError, match="the weight of a convolution is no matrix"):
        layer.conv1d(torch.ones(1, 4, dtype=configured.model_config.dtype))


@pytest.mark.parametrize(
    ("block_size", "slots"), [(64, [5, 3, 9]), (4, [6, 4, 9])], ids=["one-block", "aligned"]
)
def test_where_states_are(block_size: int, slots: list[int]) -> None:
    """In the block of a request's last token."""
    from vllm.deterministic.states.metadata import StatesMetadataBuilder

    builder: Any = StatesMetadataBuilder.__new__(StatesMetadataBuilder)
    builder.kv_cache_spec = SimpleNamespace(block_size=block_size)
    common: Any = SimpleNamespace(
        num_reqs=3,
        query_start_loc=torch.tensor([0, 3, 4, 6, 6], dtype=torch.int32),
        seq_lens=torch.tensor([7, 8, 2, 0], dtype=torch.int32),
        block_table_tensor=torch.tensor([[5, 6], [3, 4], [9, 0], [0, 0]], dtype=torch.int32),
    )
    metadata = builder.build(0, common)
    assert metadata.slots.tolist() == slots
    assert metadata.slots.dtype == torch.int32
    assert metadata.query_start_loc.tolist() == [0, 3, 4, 6]
    assert metadata.has_state.tolist() == [True, True, False]


# --- what is refused ------------------------------------------------------------------------------
def refused(config: Any, layer: Any, sentence: str) -> None:
    from vllm.deterministic.layers import use_portable_layers

    with pytest.raises(ValueError, match=f"deterministic=True cannot compute .*{sentence}"):
        use_portable_layers(nn.ModuleDict({"layer": layer}), config)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        (
            {"parallel_config": SimpleNamespace(tensor_parallel_size=2)},
            "states are not split between ranks: use tensor_parallel_size=1",
        ),
        (
            {"speculative_config": object()},
            "a rejected draft would stay in them: leave speculative_config out",
        ),
        ({"lora_config": object()}, "adapters are not tested with them: leave enable_lora out"),
    ],
    ids=["ranks", "drafts", "adapters"],
)
def test_engines_that_are_refused(configured: Any, changed: dict[str, Any], sentence: str) -> None:
    config = with_states(configured, **changed)
    with pytest.raises(ValueError, match=f"layers of this model keep states, and {sentence}"):
        check_states(config)
    check_states(with_states(configured))


def test_gpus_are_refused(configured: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    platform = SimpleNamespace(is_cpu=lambda: False)
    monkeypatch.setattr("vllm.deterministic.states.engine.current_platform", platform)
    with pytest.raises(ValueError, match="GPUs have no kernels yet: leave the flag out"):
        check_states(with_states(configured))


def with_states(config: Any, **changed: Any) -> Any:
    """A configuration of a model whose layers keep states."""
    model = SimpleNamespace(has_inner_state=True)
    return SimpleNamespace(**{**vars(config), "model_config": model, **changed})


def test_other_layers_are_refused(configured: Any) -> None:
    from vllm.model_executor.layers.mamba.mamba_mixer import MambaMixer

    layer = made(
        configured,
        lambda: MambaMixer(
            *(64, 16, 4, 128, 4, True, False, False),
            model_config=configured.model_config,
            cache_config=configured.cache_config,
            prefix="mixer",
        ),
    )
    refused(configured, layer, r"mixer \(MambaMixer\): states of this kind of layer are not")


def test_subclasses_are_refused(configured: Any) -> None:
    layer = mixer(configured)
    layer.__class__ = type("OwnMixer", (type(layer),), {})
    refused(configured, layer, r"mixer \(OwnMixer\): states of this kind of layer are not")


def test_activations_and_types_are_refused(configured: Any) -> None:
    refused(configured, mixer(configured, activation="gelu"), "the activation gelu of its conv")
    configured.compilation_config.static_forward_context.clear()
    layer = delta_net(configured, "qwen3_5_text", hidden_act="relu")
    refused(configured, layer, "the activation relu of its convolution is not specified")
    configured.compilation_config.static_forward_context.clear()
    layer = mixer(configured)
    layer.model_config = SimpleNamespace(hf_text_config=SimpleNamespace(model_type="plamo2"))
    refused(configured, layer, "the mixer of this type of models is not specified")


def test_quantised_convolutions_are_refused(configured: Any) -> None:
    layer = mixer(configured)
    layer.conv1d.quant_method = object()
    refused(configured, layer, "its convolution is quantised")
