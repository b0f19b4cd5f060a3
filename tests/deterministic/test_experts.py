"""Mixtures of experts: the bits of the reference, whatever the batch and the ranks; refusals."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest
import torch
from torch import nn

from tests.deterministic import experts_reference as reference
from tests.kernels.portable_cases import as_floats, assert_same, bits, numbers
from tools.make_random_model import make_random_model
from vllm.deterministic.equalisation import exponents_of_columns, exponents_of_rows
from vllm.deterministic.mixtures.activation import ClampedGate, ExpertActivation, Gate
from vllm.deterministic.mixtures.experts import PackedExperts, weighted_sums, with_biases
from vllm.deterministic.mixtures.routing import Routing, route
from vllm.fork_kernels.portable.functions import Function
from vllm.fork_kernels.portable.product import pack_weight, sum_partials

if TYPE_CHECKING:
    from vllm import LLM

HIDDEN, INTERMEDIATE, NUM_EXPERTS, CHOSEN = 96, 64, 5, 3
DTYPES = (torch.bfloat16, torch.float16)
SILU = Gate(Function.SILU)


def router_logits(rows: int, dtype: torch.dtype, experts: int = NUM_EXPERTS) -> torch.Tensor:
    """Router logits with ties, since most numbers are few; the last ones are far apart."""
    logits = numbers(rows, experts, seed=rows, scale=8.0).mul(4).round().div(4)
    logits[-1] *= 16
    return logits.to(dtype)


def parameters(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """The weights of the gates and ups, and of the downs, with channels of all magnitudes."""
    channels = torch.exp2(numbers(HIDDEN, seed=3, scale=4.0).round())
    gate_up = numbers(NUM_EXPERTS, 2 * INTERMEDIATE, HIDDEN, seed=1, scale=0.25) * channels
    return gate_up.to(dtype), numbers(NUM_EXPERTS, HIDDEN, INTERMEDIATE, seed=2, dtype=dtype)


def packed(
    dtype: torch.dtype,
    activation: ExpertActivation = SILU,
    ranks: int = 1,
    rank: int = 0,
    bias: torch.Tensor | None = None,
) -> PackedExperts:
    """What a rank has of the experts; their exponents are those of whole weights."""
    gate_up, down = parameters(dtype)
    first = exponents_of_rows(gate_up, 1)
    second = exponents_of_columns(down, 1, 0).chunk(ranks, dim=1)[rank]
    gate, up = gate_up.chunk(2, dim=1)
    rows = [part.chunk(ranks, dim=1)[rank] for part in (gate, up)]
    columns = down.chunk(ranks, dim=2)[rank].contiguous()
    return PackedExperts(
        [pack_weight(w, e) for w, e in zip(torch.cat(rows, dim=1), first, strict=True)],
        [pack_weight(w, e.contiguous(), parts=ranks) for w, e in zip(columns, second, strict=True)],
        activation,
        bias,
    )


# --- routing --------------------------------------------------------------------------------------
@pytest.mark.parametrize("has_corrections", [False, True])
@pytest.mark.parametrize("groups", [(1, 1), (6, 2)])
@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
@pytest.mark.parametrize("is_renormalised", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, *DTYPES], ids=str)
def test_routing(
    dtype: torch.dtype,
    is_renormalised: bool,
    scoring: Literal["softmax", "sigmoid"],
    groups: tuple[int, int],
    has_corrections: bool,
) -> None:
    logits = router_logits(40, dtype, experts=18)
    logits[0, 4] = torch.inf
    logits[1, 3:6] = torch.nan
    logits[2] = -torch.inf
    logits[3] = 1.0
    logits[4] = -torch.arange(18).to(dtype) - 20  # scores by sigmoids are below the limit
    corrections = numbers(18, seed=4, scale=0.5) if has_corrections else None
    factor = 2.5 if scoring == "sigmoid" else 1.0
    routing = Routing(6, is_renormalised, scoring, *groups, factor)
    weights, indices = route(logits, routing, corrections)
    rows = [
        reference.route(
            row,
            6,
            is_renormalised=is_renormalised,
            scoring=scoring,
            corrections=None if corrections is None else corrections.numpy(),
            groups=groups,
            factor=factor,
        )
        for row in as_floats(logits)
    ]
    assert indices.tolist() == [chosen for _, chosen in rows]
    expected = torch.stack([torch.from_numpy(row) for row, _ in rows])
    is_nan = expected.isnan()
    assert torch.equal(weights.isnan(), is_nan)  # whose bits no later operation keeps
    assert_same(weights[~is_nan], expected[~is_nan])
    if is_renormalised or scoring == "softmax":
        assert bool((weights[3:].sum(-1) <= factor * (1 + 1e-6)).all())
    if not has_corrections and groups == (1, 1):
        assert indices[3].tolist() == list(range(6))


def test_groups_and_corrections_choose_other_experts() -> None:
    """The reference would notice if they did nothing."""
    logits = router_logits(40, torch.float32, experts=18)
    corrections = numbers(18, seed=4, scale=0.5)
    plain, grouped = Routing(6, scoring="sigmoid"), Routing(6, True, "sigmoid", 6, 2)
    found = [
        route(logits, plain)[1],
        route(logits, plain, corrections)[1],
        route(logits, grouped)[1],
        route(logits, grouped, corrections)[1],
    ]
    assert not any(torch.equal(one, other) for one, other in combinations(found, 2))


# --- experts --------------------------------------------------------------------------------------
@pytest.mark.parametrize("has_biases", [False, True])
@pytest.mark.parametrize(
    ("name", "activation"),
    [("silu", SILU), ("gelu_tanh", Gate(Function.GELU_TANH)), ("clamped", ClampedGate())],
)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_reference(
    dtype: torch.dtype, name: str, activation: ExpertActivation, has_biases: bool
) -> None:
    x = numbers(9, HIDDEN, seed=7, dtype=dtype, scale=4.0)
    x[1] = 0
    x[2] *= 2.0**-13
    biases = (
        numbers(NUM_EXPERTS, 2 * INTERMEDIATE, seed=12, dtype=dtype),
        numbers(NUM_EXPERTS, HIDDEN, seed=13, dtype=dtype),
    )
    own = biases if has_biases else (None, None)
    weights, indices = route(router_logits(9, dtype), Routing(CHOSEN))
    outputs = packed(dtype, activation, bias=own[0]).outputs(x, indices)
    actual = weighted_sums(with_biases(outputs, indices, own[1]), weights, dtype)
    gate_up, down = (as_floats(weight) for weight in parameters(dtype))
    as_numbers = (as_floats(biases[0]), as_floats(biases[1])) if has_biases else None
    for i, row in enumerate(as_floats(x)):
        expected = reference.mixture(
            *(row, weights[i].numpy(), indices[i].tolist(), gate_up, down, name),
            *(str(dtype).removeprefix("torch."), as_numbers),
        )
        assert_same(actual[i], torch.from_numpy(expected).to(dtype))


def test_the_order_matters() -> None:
    """The reference would notice experts that are added in another order."""
    x = numbers(64, HIDDEN, seed=8, dtype=torch.bfloat16, scale=4.0)
    weights, indices = route(router_logits(64, torch.bfloat16), Routing(CHOSEN))
    outputs = packed(torch.bfloat16).outputs(x, indices)
    ranked = weighted_sums(outputs.clone(), weights, torch.float32)
    reversed_ = weighted_sums(outputs.flip(1), weights.flip(1), torch.float32)
    assert torch.allclose(ranked, reversed_, atol=1e-5)
    assert not torch.equal(ranked, reversed_)


def test_tokens_alone_and_together() -> None:
    experts = packed(torch.bfloat16)
    x = numbers(50, HIDDEN, seed=9, dtype=torch.bfloat16, scale=4.0)
    _, indices = route(router_logits(50, torch.bfloat16), Routing(CHOSEN, False))
    together = experts.outputs(x, indices)
    for i in range(50):
        assert_same(experts.outputs(x[i : i + 1], indices[i : i + 1]), together[i : i + 1])
    shuffled = torch.randperm(50, generator=torch.Generator().manual_seed(0))
    assert_same(experts.outputs(x[shuffled], indices[shuffled]), together[shuffled])


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_experts_that_ranks_share(ranks: int) -> None:
    x = numbers(21, HIDDEN, seed=10, dtype=torch.bfloat16, scale=4.0)
    _, indices = route(router_logits(21, torch.bfloat16), Routing(CHOSEN))
    parts = [packed(torch.bfloat16, ranks=ranks, rank=i).outputs(x, indices) for i in range(ranks)]
    whole = sum_partials(torch.stack(parts).flatten(1, 2)).view_as(parts[0])
    assert_same(whole, packed(torch.bfloat16).outputs(x, indices))


def test_small_products_and_nan() -> None:
    """A product below the limit counts +0; NaN has the bits of the specification."""
    outputs = torch.tensor([[2.0**-70, -(2.0**-71), -0.0, -torch.nan]]).view(1, 1, 4)
    sums = weighted_sums(outputs, torch.full((1, 1), 2.0**-32), torch.float32)
    assert bits(sums).tolist() == [[0x0C800000, 0, 0, 0x7FC00000]]


# --- vLLM's layers --------------------------------------------------------------------------------
def mixture(**arguments: Any) -> Any:
    """A mixture of experts as models make them, with a weight, and portable bits."""
    from vllm.config import get_current_vllm_config
    from vllm.deterministic.layers import use_portable_layers
    from vllm.model_executor.layers.fused_moe.layer import FusedMoEFactory

    settings = {
        "num_experts": NUM_EXPERTS,
        "top_k": CHOSEN,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "params_dtype": torch.bfloat16,
        "prefix": "experts",
    }
    model = nn.ModuleDict({"experts": FusedMoEFactory(**(settings | arguments))})
    use_portable_layers(model, get_current_vllm_config())
    return model["experts"]


def test_a_layer_of_vllm(configured: Any) -> None:
    from vllm.deterministic.guard import only_exact_operations
    from vllm.forward_context import set_forward_context

    runner = mixture()
    experts = runner.routed_experts
    experts.w13_weight.data, experts.w2_weight.data = parameters(torch.bfloat16)
    experts.quant_method.process_weights_after_loading(experts)
    assert sum(parameter.numel() for parameter in runner.parameters()) == 0
    x = numbers(21, HIDDEN, seed=11, dtype=torch.bfloat16, scale=4.0)
    logits = router_logits(21, torch.bfloat16)
    with set_forward_context(None, configured), only_exact_operations("a mixture of experts"):
        actual = runner(x, logits)
    weights, indices = route(logits, Routing(CHOSEN))
    outputs = packed(torch.bfloat16).outputs(x, indices)
    assert_same(actual, weighted_sums(outputs, weights, torch.bfloat16))


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"use_grouped_topk": True, "num_expert_group": 5, "topk_group": 2}, "of one expert"),
        ({"custom_routing_function": torch.topk}, "a function of its own"),
        ({"scoring_func": "sqrtsoftplus"}, "weights by sqrtsoftplus are not specified"),
        ({"swiglu_limit": 7.0}, "the activation silu is not specified"),
        ({"apply_router_weight_on_input": True}, "multiply their inputs"),
    ],
)
def test_refusals(configured: Any, arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=rf"cannot compute experts \(MoERunner\): .*{reason}"):
        mixture(**arguments)


def test_cuda_graphs_are_refused(configured: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which experts are computed is decided on the CPU."""
    from vllm.config import CUDAGraphMode

    monkeypatch.setattr(configured.compilation_config, "cudagraph_mode", CUDAGraphMode.FULL)
    with pytest.raises(ValueError, match=r"experts \(MoERunner\): a CUDA graph would keep"):
        mixture()


# --- an engine ------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Mixtral, narrow and random."""
    folder = tmp_path_factory.mktemp("models") / "mixtral"
    make_random_model("mixtral-8x7b", folder, num_layers=2, narrow=True)
    return folder


@contextmanager
def started(folder: Path, ranks: int) -> Iterator[LLM]:
    """A step has fewer tokens than a batch of prompts."""
    from vllm import LLM

    llm = LLM(
        str(folder),
        dtype="bfloat16",
        hf_compat=True,
        deterministic=True,
        max_model_len=256,
        max_num_batched_tokens=64,
        max_num_seqs=16,
        kv_cache_memory_bytes=1 << 26,
        enable_prefix_caching=False,
        tensor_parallel_size=ranks,
    )
    yield llm
    llm.llm_engine.engine_core.shutdown()


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[LLM]:
    with started(folder, 1) as llm:
        yield llm


LENGTHS = (60, 3, 17, 33, 64, 1, 41, 90)
PROMPTS = [numbers(n, seed=n).abs().mul(31000).int().add(3).tolist() for n in LENGTHS]


def logits_of(engine: LLM, prompts: list[list[int]]) -> list[torch.Tensor]:
    given: Any = [{"prompt_token_ids": prompt} for prompt in prompts]
    settings = {"max_new_tokens": 8, "min_new_tokens": 8, "output_logits": True}
    outputs = engine.generate(given, use_tqdm=False, **settings)
    return [torch.as_tensor(output.outputs[0].logits) for output in outputs]


def test_prompts_in_chunks_and_alone(engine: LLM, folder: Path) -> None:
    """Alone, all but one prompt are computed whole; Transformers say what is roughly right."""
    from transformers import AutoModelForCausalLM

    together = logits_of(engine, PROMPTS)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    for prompt, logits in zip(PROMPTS, together, strict=True):
        assert_same(logits_of(engine, [prompt])[0], logits)
        with torch.no_grad():
            right = model(torch.tensor([prompt])).logits[0, -1]
        assert (logits[0] - right).norm() < 0.1 * right.norm()


@torch.no_grad()
def test_attached_to_transformers(engine: LLM, folder: Path) -> None:
    from transformers import AutoModelForCausalLM

    from vllm.deterministic import attach

    model = attach(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval())
    for prompt, logits in zip(PROMPTS, logits_of(engine, PROMPTS), strict=True):
        answer = logits.argmax(-1).tolist()
        ids = torch.tensor([prompt + answer])
        assert_same(model(ids, use_cache=False).logits[0, len(prompt) - 1 : -1], logits)


@pytest.mark.long
def test_two_ranks(engine: LLM, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    with started(folder, 2) as other:
        found = logits_of(other, PROMPTS)
    for one, logits in zip(logits_of(engine, PROMPTS), found, strict=True):
        assert_same(logits, one)
