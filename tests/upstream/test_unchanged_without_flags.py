"""With no flag set, the distribution is upstream vLLM, bit for bit."""

from __future__ import annotations

import pytest

from tests.engines import MODEL
from tests.sizes import size
from tests.upstream.trees import run_probe


@pytest.mark.parametrize(("dtype", "eager"), [("bfloat16", True), ("float32", False)][: size(1, 2)])
def test_tokens_and_logprobs(dtype: str, eager: bool) -> None:
    arguments = {"model": str(MODEL), "dtype": dtype, "eager": eager}
    ours = run_probe("outputs", upstream=False, arguments=arguments)
    theirs = run_probe("outputs", upstream=True, arguments=arguments)
    assert len(theirs) == 8
    assert ours == theirs
