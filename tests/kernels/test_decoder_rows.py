"""What all decoder layers as one operator refuse; their bits are tested with models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.instruction_sets import NEEDS_AVX512
from vllm.fork_kernels.layer_weights import Epsilons, LayerWeights, ProductWeights
from vllm.fork_kernels.torch_order.decoder_rows import (
    DecoderWeights,
    Prompts,
    RowsAtOnce,
    RowsInPages,
    Way,
    decoder_rows,
)

pytestmark = NEEDS_AVX512

HIDDEN, HEADS, SIZE, INNER, ROWS = 64, 2, 32, 96, 2


def layer(**changes: Any) -> LayerWeights:
    def zeros(*shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=torch.float16)

    made = LayerWeights(
        input_norm=zeros(HIDDEN),
        qkv=ProductWeights(zeros(3 * HEADS * SIZE, HIDDEN)),
        query_norm=None,
        key_norm=None,
        output=ProductWeights(zeros(HIDDEN, HEADS * SIZE)),
        post_norm=zeros(HIDDEN),
        gate_up=ProductWeights(zeros(2 * INNER, HIDDEN)),
        down=ProductWeights(zeros(HIDDEN, INNER)),
    )
    return made._replace(**changes)


def place(**changes: Any) -> RowsInPages:
    made = RowsInPages(
        slots=torch.arange(ROWS),
        blocks=torch.zeros(ROWS, 1, dtype=torch.int32),
        starts=torch.zeros(ROWS, dtype=torch.int64),
        stops=torch.ones(ROWS, dtype=torch.int64),
    )
    return made._replace(**changes)


def prompts(*spans: tuple[int, int, int, int]) -> Prompts:
    own = torch.tensor(spans).view(-1, 4)
    return Prompts(torch.zeros(1, 1, dtype=torch.int32), own[:0], own)


def run(
    layers: list[LayerWeights],
    pages: int | None = None,
    places: Any = None,
    x: Any = None,
    at_once: RowsAtOnce = RowsAtOnce(),  # noqa: B008
) -> Any:
    cache = torch.zeros(1, HEADS, 16, 2 * SIZE, dtype=torch.float16)
    return decoder_rows(
        torch.zeros(ROWS, HIDDEN, dtype=torch.float16) if x is None else x,
        DecoderWeights(layers, [(0, 0, 0, 0)] * len(layers), Epsilons(1e-6, 1e-6)),
        torch.zeros(ROWS, dtype=torch.int64),
        torch.zeros(4, SIZE, dtype=torch.float16),
        [cache] * (len(layers) if pages is None else pages),
        places or [place()] * len(layers),
        is_neox=True,
        scale=1.0,
        at_once=at_once,
    )


def test_what_it_takes() -> None:
    added, total = run([layer(), layer()])
    assert added.shape == total.shape == (ROWS, HIDDEN)


def random_layer(generator: torch.Generator) -> LayerWeights:
    def filled(x: Any) -> Any:
        if isinstance(x, ProductWeights):
            return ProductWeights(*map(filled, x))
        if x is None:
            return x
        return torch.randn(x.shape, generator=generator).div(8).to(x.dtype)

    return LayerWeights(*map(filled, layer()))


@pytest.mark.parametrize("threads", [2, 3, 7])
def test_threads_that_share_a_step(threads: int) -> None:
    """Also more of them than there are cores, of which some come late to each operation."""
    generator = torch.Generator().manual_seed(0)
    layers = [random_layer(generator) for _ in range(6)]
    count = 64
    x = torch.randn(count, HIDDEN, generator=generator).half()
    places = place(
        slots=torch.arange(count) * 16,
        blocks=torch.arange(count, dtype=torch.int32)[:, None],
        starts=torch.zeros(count, dtype=torch.int64),
        stops=torch.ones(count, dtype=torch.int64),
    )

    def step() -> torch.Tensor:
        pages = [torch.zeros(count, HEADS, 16, 2 * SIZE, dtype=torch.float16) for _ in layers]
        added, total = decoder_rows(
            x,
            DecoderWeights(layers, [(0, 0, 0, 0)] * len(layers), Epsilons(1e-6, 1e-6)),
            torch.zeros(count, dtype=torch.int64),
            torch.ones(4, SIZE, dtype=torch.float16),
            pages,
            [places] * len(layers),
            is_neox=True,
            scale=1.0,
        )
        return torch.stack([added, total, *(one[:, 0, 0, :HIDDEN] for one in pages)])

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = step()
        assert alone.isfinite().all()
        torch.set_num_threads(threads)
        for _ in range(100):
            assert torch.equal(step(), alone)
    finally:
        torch.set_num_threads(before)


def test_a_failure_on_a_thread_of_several() -> None:
    """The step ends with it, and the next one has all threads again."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        for _ in range(20):
            with pytest.raises(RuntimeError, match="paged_sdpa: "):
                run([layer()], places=[place(stops=torch.full((ROWS,), 99))])
            run([layer()])
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: run([layer()], pages=2), "pages must have 1 entries, but has 2."),
        (
            lambda: run([layer()], places=[place()] * 2),
            "place_of_layer must have 1 entries, but has 2.",
        ),
        (
            lambda: run(
                [layer(), layer(down=ProductWeights(torch.zeros(HIDDEN + 1, INNER).half()))]
            ),
            f"down must have {HIDDEN} rows in each layer, as it has in the first.",
        ),
        (
            lambda: run([layer(qkv=ProductWeights(torch.zeros(HIDDEN, HIDDEN).half()))]),
            "qkv has 64 outputs, which are no queries, keys and values of 2 heads",
        ),
        (
            lambda: run([layer()], x=torch.zeros(HIDDEN).half()),
            r"x must have 2 dimension\(s\), but has 1.",
        ),
        (
            lambda: run([layer()], places=[place(stops=torch.full((ROWS,), 99))]),
            "paged_sdpa: ",
        ),
        (
            lambda: run([layer(input_norm=torch.zeros(HIDDEN))]),
            "weight must have dtype float16, but has float32.",
        ),
        (
            lambda: run([layer()], at_once=RowsAtOnce.of([[], [], [(Way.AT_ONCE, 0, 1)], []])),
            "at_once must be of all 2 rows.",
        ),
        (
            lambda: run([layer()], at_once=RowsAtOnce.of([[(Way.BY_ROW, 1, 2)]])),
            "at_once has rows 1 to 2, where row 0 begins.",
        ),
        (
            lambda: run([layer()], at_once=RowsAtOnce.of([[(7, 0, 2)]])),
            "at_once has 7 for a way to multiply.",
        ),
        (
            lambda: run([layer()], at_once=RowsAtOnce((4, 0, 0, 2))),
            "at_once has 4 for one of 4 products.",
        ),
        (
            lambda: run([layer()], at_once=RowsAtOnce((0, 0, 0))),
            "at_once must have four numbers for each part, but has 3.",
        ),
        (lambda: run([]), "there must be a layer."),
        (
            lambda: run([layer()], at_once=RowsAtOnce(activated=(0, 1, 0))),
            "activated must be of all 2 rows.",
        ),
        (
            lambda: run([layer()], places=[place(first=1)]),
            "firsts has row 1 for the first of 2 tokens, and there are 2 rows.",
        ),
        (
            lambda: run([layer()], places=[place(prompts=prompts((0, 3, 0, 3)))]),
            r"prompt_sdpa: spans\[0\] is of rows 0 to 3",
        ),
    ],
)
def test_what_it_refuses(call: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(RuntimeError, match=sentence):
        call()


def test_steps_are_of_float32() -> None:
    """One row is multiplied by PyTorch, whose result has the place of a row in float32."""
    qkv = layer().qkv._replace(how=torch.zeros(1, 5, dtype=torch.int32))
    one = place(
        slots=torch.zeros(1, dtype=torch.int64),
        blocks=torch.zeros(1, 1, dtype=torch.int32),
        starts=torch.zeros(1, dtype=torch.int64),
        stops=torch.ones(1, dtype=torch.int64),
    )
    with pytest.raises(RuntimeError, match=r"x must have dtype float32, but has float16\."):
        run([layer(qkv=qkv)], places=[one], x=torch.zeros(1, HIDDEN, dtype=torch.float16))


def test_a_bias_that_other_layers_lack() -> None:
    """Of the last layer, so that what is added is the bias: weights are zeros."""
    bias = torch.arange(HIDDEN).half()
    added, total = run([layer(), layer(down=layer().down._replace(bias=bias))])
    assert torch.equal(added, bias.expand(ROWS, -1))
    assert not total.any()
