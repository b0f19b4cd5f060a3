"""Every layer of a model with new weights has the bits of a model that was loaded with them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tests.kernels.portable_cases import assert_same
from tests.live_weights.checkpoints import Tensors, changed_checkpoint, tensors_of
from tests.loaded_models import LoadModel, engine_config, load_model, model_of
from vllm.deterministic.linear import PortableEmbeddingMethod
from vllm.fork.live_weights.install import let_weights_change
from vllm.fork.live_weights.registry import live_weights_of
from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
from vllm.model_executor.layers.linear import LinearBase
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

__all__ = ["load_model"]

MODES: dict[str, dict[str, Any]] = {
    "none": {},
    "none-float32": {"dtype": "float32"},
    "split": {"split_qkv": True},
    "hf_compat": {"hf_compat": True},
    "hf_compat-float32": {"hf_compat": True, "dtype": "float32"},
    "deterministic": {"deterministic": True},
}
SHAPES = ("llama", "qwen2-0.5b", "gemma2-2b", "gpt2", "opt-125m", "phi3-mini", "mixtral-8x7b")
"""Own and tied heads, biases, ``Conv1D``, matrices that are fused in Hugging Face, too, experts."""


def live_model(load: LoadModel, shape: str, mode: str) -> tuple[Any, Path]:
    model, folder = load(shape, **MODES[mode])
    return with_live_weights(model, folder, mode), folder


def with_live_weights(model: Any, folder: Path, mode: str) -> Any:
    config = engine_config(folder, **MODES[mode])
    runner: Any = SimpleNamespace(
        vllm_config=config, get_model=lambda: model, reload_weights=lambda: None
    )
    let_weights_change(runner)
    return model


@pytest.fixture(scope="module")
def new_folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {}


def new_weights(folder: Path, folders: dict[str, Path]) -> Path:
    if folder.name not in folders:
        folders[folder.name] = changed_checkpoint(folder, folder.parent / f"{folder.name}-new")
    return folders[folder.name]


def results(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield what each layer makes of some rows, and each parameter that is a layer's own."""
    for name, layer in model.named_modules():
        method: Any = getattr(layer, "quant_method", None)
        generator = torch.Generator().manual_seed(1)
        if isinstance(layer, RoutedExperts):
            hidden = layer.moe_config.hidden_dim
            x = torch.randn(5, hidden, generator=generator).bfloat16()
            weights = torch.rand(5, 2, generator=generator)
            ids = torch.stack([torch.randperm(8, generator=generator)[:2] for _ in range(5)])
            x = x.to(layer.moe_config.in_dtype)
            ids = ids.int() if type(method).__name__ == "UnquantizedFusedMoEMethod" else ids
            yield name, method.apply(layer, x, weights, ids, None, None)
        elif isinstance(layer, LinearBase | VocabParallelEmbedding) and method is not None:
            is_head = not isinstance(layer, LinearBase)
            size = layer.embedding_dim if is_head else layer.input_size
            x = torch.randn(3, size, generator=generator).to(next(model.parameters()).dtype)
            bias = getattr(layer, "bias", None)
            is_no_head = isinstance(method, PortableEmbeddingMethod) and method.packed is None
            if not is_no_head:
                yield name, method.apply(layer, x, bias)
        elif not isinstance(layer, VocabParallelEmbedding):
            for own, parameter in layer.named_parameters(recurse=False):
                yield f"{name}.{own}", parameter


def assert_equal_models(found: nn.Module, expected: nn.Module) -> None:
    count = 0
    for (name, ours), (other, fresh) in zip(results(found), results(expected), strict=True):
        assert name == other
        assert_same(ours, fresh)
        count += 1
    assert count > 5


@pytest.mark.some(6)  # of each mode another shape
@pytest.mark.parametrize(("mode", "shape"), list(product(MODES, SHAPES)))
def test_each_way_of_loading(
    load_model: LoadModel, new_folders: dict[str, Path], mode: str, shape: str
) -> None:
    model, folder = live_model(load_model, shape, mode)
    new_folder = new_weights(folder, new_folders)
    before, new = tensors_of(folder), tensors_of(new_folder)
    first = dict(results(model))
    forms = {name: (p.shape, p.dtype) for name, p in model.named_parameters()}
    expected = model_of(engine_config(new_folder, **MODES[mode]))
    assert any(not torch.equal(first[name], value) for name, value in results(expected))

    model.load_weights(new)
    assert_equal_models(model, expected)
    shuffled = random.Random(3).sample(before, len(before))
    for pair in shuffled:  # one at a time, parts of a matrix far apart
        model.load_weights([pair])
    assert_equal_models(model, load_model(shape, **MODES[mode])[0])
    for begin, end in pairwise([0, 3, 4, len(new) // 2, len(new)]):
        model.load_weights(iter(new[begin:end]))
    assert_equal_models(model, expected)

    assert {name: (p.shape, p.dtype) for name, p in model.named_parameters()} == forms
    live = live_weights_of(model)
    assert live is not None
    assert live.obstacle() is None


def part_of(tensors: Tensors, text: str) -> Tensors:
    found = [pair for pair in tensors if text in pair[0]]
    assert found
    return found


@pytest.mark.parametrize("mode", ["none", "hf_compat", "deterministic"])
def test_one_expert(load_model: LoadModel, new_folders: dict[str, Path], mode: str) -> None:
    model, folder = live_model(load_model, "mixtral-8x7b", mode)
    new_folder = new_weights(folder, new_folders)
    model.load_weights(part_of(tensors_of(new_folder), ".experts.3."))
    mixed = folder.parent / f"mixtral-one-expert-{mode}"
    changed_checkpoint(folder, mixed)
    from safetensors.torch import save_file

    wanted = {
        name: new if ".experts.3." in name else old
        for (name, old), (_, new) in zip(tensors_of(folder), tensors_of(new_folder), strict=True)
    }
    for file in mixed.glob("*.safetensors"):
        file.unlink()
    for index in mixed.glob("*.index.json"):
        index.unlink()
    save_file(wanted, mixed / "model.safetensors", metadata={"format": "pt"})
    assert_equal_models(model, model_of(engine_config(mixed, **MODES[mode])))


def test_what_is_packed_together_is_waited_for(
    load_model: LoadModel, new_folders: dict[str, Path]
) -> None:
    model, folder = live_model(load_model, "llama", "deterministic")
    new = tensors_of(new_weights(folder, new_folders))
    live: Any = live_weights_of(model)
    before = dict(results(model))
    model.load_weights(part_of(new, "q_proj"))
    assert "qkv_proj only some were given" in live.obstacle()
    assert live.version == 0
    for name, value in results(model):
        assert_same(value, before[name])
    model.load_weights(part_of(new, "k_proj"))
    assert live.obstacle() is not None
    model.load_weights(part_of(new, "v_proj"))
    assert live.obstacle() is None
    changed = [name for name, value in results(model) if not torch.equal(value, before[name])]
    assert changed == ["model.layers.0.self_attn.qkv_proj"]

    live.begin()
    model.load_weights(part_of(new, "gate_proj"))
    with pytest.raises(ValueError, match=r"gate_up_proj only some .* Nothing was changed\.$"):
        live.finish()
    assert live.obstacle() is None


BAD: dict[str, tuple[Tensors, str]] = {
    "name": ([("model.layers.0.self_attn.z_proj.weight", torch.zeros(2))], "z_proj"),
    "place": ([("model.layers.7.self_attn.q_proj.weight", torch.zeros(2))], "layers.7"),
    "shape": ([("model.norm.weight", torch.zeros(3))], r"norm.weight \[3\]"),
    "packed-shape": ([("model.layers.0.mlp.down_proj.weight", torch.zeros(3, 3))], "down_proj"),
}


@pytest.mark.some(5)
@pytest.mark.parametrize("mode", ["none", "hf_compat", "deterministic"])
@pytest.mark.parametrize("kind", BAD)
def test_a_wrong_list_changes_nothing(
    load_model: LoadModel, new_folders: dict[str, Path], mode: str, kind: str
) -> None:
    model, folder = live_model(load_model, "llama", mode)
    new = tensors_of(new_weights(folder, new_folders))
    before = {name: value.clone() for name, value in results(model)}
    wrong, words = BAD[kind]
    with pytest.raises(ValueError, match=f"^The weight .*{words}.* Nothing was changed.$"):
        model.load_weights([*new, *wrong])
    for name, value in results(model):
        assert_same(value, before[name])


@pytest.mark.parametrize("mode", ["none", "hf_compat", "deterministic"])
def test_after_a_failure_all_have_to_come(
    load_model: LoadModel, new_folders: dict[str, Path], mode: str
) -> None:
    """A stream is not tried before; and a number that is not finite cannot be packed."""
    model, folder = live_model(load_model, "llama", mode)
    new_folder = new_weights(folder, new_folders)
    new, live = tensors_of(new_folder), live_weights_of(model)
    assert live is not None
    with pytest.raises(ValueError, match=r"Some of the weights have changed, and others have not"):
        model.load_weights(iter([*new[:5], *BAD["packed-shape"][0]]))
    assert "cannot be loaded" in (live.obstacle() or "")
    for pair in new[:-1]:
        model.load_weights([pair])
        assert live.obstacle() is not None
    model.load_weights(new[-1:])
    assert live.obstacle() is None
    assert_equal_models(model, model_of(engine_config(new_folder, **MODES[mode])))


def test_numbers_that_cannot_be_packed(load_model: LoadModel, new_folders: dict[str, Path]) -> None:
    """What came with them is forgotten, or the old ones would be mixed with it later."""
    model, folder = live_model(load_model, "llama", "deterministic")
    new, live = dict(tensors_of(new_weights(folder, new_folders))), live_weights_of(model)
    assert live is not None
    before = {name: value.clone() for name, value in results(model)}
    attention = "model.layers.0.self_attn."
    q, k, v = (f"{attention}{one}_proj.weight" for one in "qkv")
    wrong = new[q].clone()
    wrong[0, 0] = torch.inf
    with pytest.raises(
        ValueError, match=f"weights of {attention}qkv_proj cannot .*not finite.* Nothing was change"
    ):
        model.load_weights([(q, wrong), (k, new[k]), (v, new[v])])
    assert live.obstacle() is None
    down = "model.layers.0.mlp.down_proj"
    wrong = new[f"{down}.weight"].clone()
    wrong[0, 0] = torch.inf
    with pytest.raises(ValueError, match=f"{down} .*not finite.* Nothing was changed"):
        model.load_weights([(f"{down}.weight", wrong)])
    old = dict(tensors_of(folder))
    model.load_weights([(q, old[q])])
    assert "qkv_proj only some were given" in (live.obstacle() or "")
    model.load_weights([(k, old[k]), (v, old[v])])
    assert live.obstacle() is None
    for name, value in results(model):
        assert_same(value, before[name])


def is_packed(model: nn.Module, mode: str) -> bool:
    """Whether matrices are kept packed alone; upstream packs on CPUs with AVX-512."""
    found = any(bool(param.isnan().all()) for param in model.parameters())
    assert found == {"hf_compat": False, "deterministic": True}.get(mode, found)
    return found


@pytest.mark.parametrize("mode", ["none", "deterministic"])
def test_pieces_of_an_update_that_was_given_up(
    load_model: LoadModel, new_folders: dict[str, Path], mode: str
) -> None:
    """A whole list has all that it needs, and a stream that fails leaves nothing to the next."""
    model, folder = live_model(load_model, "llama", mode)
    new_folder = new_weights(folder, new_folders)
    new, old, live = tensors_of(new_folder), tensors_of(folder), live_weights_of(model)
    assert live is not None
    expected = model_of(engine_config(new_folder, **MODES[mode]))
    last = {name: tensor for name, tensor in old if "up_proj" in name or "v_proj" in name}
    model.load_weights(list(last.items()))
    assert (live.obstacle() is not None) == is_packed(model, mode)
    model.load_weights(new)
    assert live.obstacle() is None
    assert_equal_models(model, expected)
    with pytest.raises(ValueError, match="cannot be loaded"):
        model.load_weights(iter([*last.items(), *BAD["name"][0]]))
    for pair in new:
        model.load_weights([pair])
    assert live.obstacle() is None
    assert_equal_models(model, expected)


@pytest.mark.parametrize("mode", ["none", "hf_compat", "deterministic"])
def test_what_only_seems_to_be_a_checkpoint(
    load_model: LoadModel, new_folders: dict[str, Path], mode: str
) -> None:
    """An engine's own parameters, where it keeps them packed; and matrices that are too large."""
    model, folder = live_model(load_model, "llama", mode)
    new = dict(tensors_of(new_weights(folder, new_folders)))
    before = {name: value.clone() for name, value in results(model)}
    own = [(name, param.clone()) for name, param in model.named_parameters()]
    if not is_packed(model, mode):
        model.load_weights(own)
    else:
        with pytest.raises(ValueError, match=r"is NaN throughout.* Nothing was changed"):
            model.load_weights(own)
    for name in ("mlp.up_proj", "mlp.down_proj", "self_attn.k_proj"):
        full = f"model.layers.0.{name}.weight"
        for dim in (0, 1):
            large = torch.cat([new[full]] * 2, dim=dim)
            with pytest.raises(ValueError, match=f"{full} .*cannot be loaded.* Nothing was change"):
                model.load_weights([(full, large)])
    for name, value in results(model):
        assert_same(value, before[name])


@pytest.mark.parametrize("mode", ["none", "deterministic"])
def test_numbers_that_are_negated_when_read(
    load_model: LoadModel, new_folders: dict[str, Path], mode: str
) -> None:
    model, folder = live_model(load_model, "llama", mode)
    new_folder = new_weights(folder, new_folders)
    negated = [(name, torch._neg_view(-tensor)) for name, tensor in tensors_of(new_folder)]
    model.load_weights(negated)
    assert_equal_models(model, model_of(engine_config(new_folder, **MODES[mode])))


def test_packed_weights_stay_where_they_are(
    load_model: LoadModel, new_folders: dict[str, Path]
) -> None:
    """A CUDA graph keeps their addresses, and a norm's digits are made for an object."""
    model, folder = live_model(load_model, "qwen2-0.5b", "deterministic")
    new = tensors_of(new_weights(folder, new_folders))

    def places() -> list[tuple[int, int, int]]:
        methods: list[Any] = [getattr(one, "quant_method", None) for one in model.modules()]
        packed = [one.packed for one in methods if getattr(one, "packed", None) is not None]
        return [(id(one), one.packed.data_ptr(), one.exponents.data_ptr()) for one in packed]

    before = places()
    assert len(before) == 5
    model.load_weights(new)
    assert places() == before


@pytest.mark.parametrize("mode", ["none", "hf_compat-float32"])
def test_what_is_not_known_stays_upstreams_or_is_refused(load_model: LoadModel, mode: str) -> None:
    """Latent attention keeps products of its weights."""
    model: Any
    model, folder = load_model("deepseek-v2-lite", **MODES[mode])
    loaders = [getattr(one, "weight_loader", None) for one in model.parameters()]
    with_live_weights(model, folder, mode)
    assert live_weights_of(model) is None
    assert [getattr(one, "weight_loader", None) for one in model.parameters()] == loaders
    if mode != "none":
        with pytest.raises(ValueError, match=r"cannot be changed, since latent attention keeps"):
            model.load_weights(tensors_of(folder))


def test_a_packed_parameter_that_is_copied_to(load_model: LoadModel) -> None:
    """Some models copy, and ask no loader (gpt-oss's experts)."""
    model, _ = live_model(load_model, "mixtral-8x7b", "deterministic")
    experts = next(one for one in model.modules() if isinstance(one, RoutedExperts))
    method: Any = experts.quant_method
    x = torch.randn(5, experts.moe_config.hidden_dim, generator=torch.Generator().manual_seed(1))
    ids = torch.tensor([[0, 1]] * 5)
    weights = torch.ones(5, 2)
    assert method.weighted_sums(x.bfloat16(), weights, ids).any()
    live = live_weights_of(model)
    assert live is not None
    version = live.version
    with torch.no_grad():
        experts.w2_weight.copy_(torch.zeros(experts.w2_weight.shape))
    assert not method.weighted_sums(x.bfloat16(), weights, ids).any()
    assert live.version > version
