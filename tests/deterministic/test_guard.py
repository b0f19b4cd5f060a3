"""The guard: what rounds once passes, and all else is refused by name."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable

import pytest
import torch

from tests.structure.imports import imports_of, modules
from vllm.deterministic.guard import (
    InexactOperationError,
    only_exact_operations,
    only_exact_operations_of,
)
from vllm.fork_kernels.logits.seen_tokens import apply_repetition_penalty
from vllm.fork_kernels.operators import is_specified
from vllm.fork_kernels.portable.functions import Function, portable_map

X = torch.arange(12, dtype=torch.bfloat16).view(3, 4) - 5
HEADS = X.view(1, 1, 3, 4)

ALLOWED: dict[str, Callable[[], object]] = {
    "views": lambda: X.t().reshape(2, 6)[:, 1:].unsqueeze(0).expand(3, 2, 5).contiguous(),
    "copies": lambda: torch.cat((X, X.float().half().bfloat16())).clone(),
    "rows": lambda: torch.nn.functional.embedding(torch.tensor([1, 2]), X),
    "selection": lambda: torch.where(X > 0, X, X[0]).masked_fill(X < -3, 0.0),
    "sums": lambda: X + X - X[0],
    "products": lambda: X * X * 0.5,
    "products with numbers of no 16 bits": lambda: 0.22 * X * -11.3,
    "quotients by powers of two": lambda: X / 4 / 0.5,
    "quotients": lambda: X.float() / torch.tensor([3.0]),
    "integers": lambda: torch.arange(5).cumsum(0).sum() // 2,
    "portable": lambda: portable_map(X, Function.SILU),
}

REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "matrix product": (lambda: X @ X.t(), "aten::mm, whose bits are not specified"),
    "linear": (lambda: torch.nn.functional.linear(X, X, X[:, 0]), "aten::addmm"),
    "softmax": (lambda: X.softmax(-1), "aten::_softmax"),
    "exponential": (lambda: X.exp(), "aten::exp"),
    "root": (lambda: (X * X).rsqrt(), "aten::rsqrt"),
    "power": (lambda: X.pow(2), "aten::pow"),
    "mean": (lambda: X.mean(), "aten::mean"),
    "sum": (lambda: X.sum(-1), "aten::sum"),
    "in place": (lambda: X.clone().exp_(), "aten::exp_"),
    "silu": (lambda: torch.nn.functional.silu(X), "aten::silu"),
    "norm": (lambda: torch.nn.functional.layer_norm(X, (4,)), "aten::native_layer_norm"),
    "attention": (
        lambda: torch.nn.functional.scaled_dot_product_attention(HEADS, HEADS, HEADS),
        "aten::_scaled_dot_product",
    ),
    "division by a number": (lambda: X / 3, "by a single number"),
    "division by one tensor": (lambda: X / torch.tensor(3.0), "by a single number"),
    "fused sum": (lambda: torch.add(X, X, alpha=2), "with a factor"),
    "a sum with a number of no 16 bits": (
        lambda: X + 0.1,
        "with 0.1, which is no number of torch.bfloat16",
    ),
    "a double of no 16 bits": (
        lambda: X * torch.tensor(0.1, dtype=torch.float64),
        "with 0.1, which is no number of torch.bfloat16",
    ),
    "rounded division": (
        lambda: torch.div(X, X, rounding_mode="floor"),
        "with a rounding mode",
    ),
    "an operator of the fork that is not portable": (
        lambda: apply_repetition_penalty(
            torch.ones(1, 4),
            torch.zeros(1, 1, dtype=torch.int32),
            torch.zeros(1, dtype=torch.int32),
            torch.ones(1, dtype=torch.float64),
        ),
        "vllm_fork::apply_repetition_penalty",
    ),
}


@pytest.mark.parametrize("is_inference", [False, True])
@pytest.mark.parametrize("name", ALLOWED)
def test_what_rounds_once_passes(name: str, is_inference: bool) -> None:
    expected = ALLOWED[name]()
    with torch.inference_mode(is_inference), only_exact_operations("the test"):
        found = ALLOWED[name]()
    assert isinstance(expected, torch.Tensor)
    assert isinstance(found, torch.Tensor)
    assert torch.equal(expected, found)


@pytest.mark.parametrize("is_inference", [False, True])
@pytest.mark.parametrize("name", REFUSED)
def test_the_rest_is_refused(name: str, is_inference: bool) -> None:
    compute, reason = REFUSED[name]
    compute()
    with (
        torch.inference_mode(is_inference),
        pytest.raises(InexactOperationError, match=reason) as raised,
        only_exact_operations("the test"),
    ):
        compute()
    assert str(raised.value).startswith("deterministic mode cannot compute the test: it calls ")


def test_the_place_is_asked_for_when_it_is_needed() -> None:
    places = iter(["layers.3.mlp"])
    with (
        pytest.raises(InexactOperationError, match=r"compute layers\.3\.mlp: it calls aten::exp"),
        only_exact_operations(lambda: next(places)),
    ):
        (X + X).exp()


def test_operators_may_be_added() -> None:
    with only_exact_operations("the test", also=["aten::exp"]):
        X.exp()


def test_the_submodule_is_named() -> None:
    model = torch.nn.Sequential(torch.nn.Identity(), torch.nn.Sequential(torch.nn.SiLU()))
    with (
        pytest.raises(InexactOperationError, match=r"cannot compute 1\.0: it calls aten::silu"),
        only_exact_operations_of(model),
    ):
        model(X)


def operators_with_tensors() -> set[str]:
    """Return the names of the fork's registered operators that take or return tensors."""
    names = (name.partition("::") for name in torch._C._dispatch_get_all_op_names())
    own = {name.partition(".")[0] for namespace, _, name in names if namespace == "vllm_fork"}
    schemas = {name: str(getattr(torch.ops.vllm_fork, name).default._schema) for name in own}
    return {name for name, schema in schemas.items() if "Tensor" in schema}


def operators_of_deterministic_layers() -> set[str]:
    """Return those that are named in modules of fork_kernels which deterministic mode imports."""
    known = modules()
    reached = {name for name in known if name.startswith("vllm.deterministic.")}
    waiting = list(reached)
    while waiting:
        new = {one for one in imports_of(waiting.pop(), known) if "fork_kernels." in one} - reached
        reached |= new
        waiting += new
    texts = [known[name].read_text() for name in reached if "fork_kernels." in name]
    return operators_with_tensors() & {
        word.removeprefix("_") for text in texts for word in re.findall(r"\w+", text)
    }


def test_every_operator_of_deterministic_layers_passes() -> None:
    """Those of GPUs, too, which no layer calls here."""
    called = operators_of_deterministic_layers()
    on_gpus = {"portable_rotate_append", "portable_attention_digits", "portable_norm_digits"}
    assert on_gpus | {"portable_product", "portable_decoder_layers"} <= called
    assert not {"decoder_rows", "paged_sdpa", "rms_norm_rounded"} & called
    for name in modules():
        if name.startswith("vllm.fork_kernels."):
            importlib.import_module(name)
    passing = {one for one in operators_with_tensors() if is_specified(f"vllm_fork::{one}")}
    assert passing == called


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_products_with_numbers_are_those_of_the_specification(dtype: torch.dtype) -> None:
    """The number is rounded to float32, and not to 16 bits; the product is rounded once more."""
    x = torch.linspace(-300, 300, 4001).to(dtype)
    with only_exact_operations("the test"):
        found = x * 0.22
    expected = (x.float() * torch.tensor([0.22])).to(dtype)
    assert torch.equal(found, expected)
    assert not torch.equal(found, x * torch.tensor([0.22]).to(dtype))
