"""Engines of models whose layers keep states: the same bits however a text is cut and kept."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.deterministic.states_models import CHANGES, write_model
from tests.kernels.portable_cases import assert_same

if TYPE_CHECKING:
    from vllm import LLM

NUM_TOKENS = 20
LENGTHS = (60, 3, 17, 33, 150, 1, 41, 90)
SHARED = 140
"""Tokens that the last prompts have in common: a few blocks of all models."""

_ALWAYS = ("granitemoehybrid", "qwen3_5_text")
_NAMES = [pytest.param(name, marks=() if name in _ALWAYS else pytest.mark.long) for name in CHANGES]


def prompts() -> list[list[int]]:
    draw = random.Random(3)
    ids = range(4, 250)
    shared = draw.choices(ids, k=SHARED)
    return [
        *(draw.choices(ids, k=length) for length in LENGTHS),
        *(shared + draw.choices(ids, k=length) for length in (2, 9, 30)),
    ]


PROMPTS = prompts()


@contextmanager
def started(folder: Path, **arguments: Any) -> Iterator[LLM]:
    from vllm import LLM

    settings: dict[str, Any] = {
        "dtype": "bfloat16",
        "deterministic": True,
        # Twins have tests of their own; the definition of OLMo hybrid has names of its checkpoint.
        "hf_compat": True if folder.name == "olmo_hybrid" else "rules",
        "max_model_len": 256,
        "max_num_seqs": 8,
        "enforce_eager": True,
        "skip_tokenizer_init": True,
        "disable_log_stats": False,
        "enable_prefix_caching": False,
    }
    if "num_gpu_blocks_override" not in arguments:
        settings["kv_cache_memory_bytes"] = 1 << 26
    llm = LLM(str(folder), **(settings | arguments))
    yield llm
    llm.llm_engine.engine_core.shutdown()


def logits_of(engine: LLM, prompts: list[list[int]]) -> list[torch.Tensor]:
    given: Any = [{"prompt_token_ids": prompt} for prompt in prompts]
    settings: dict[str, Any] = {"max_new_tokens": NUM_TOKENS, "min_new_tokens": NUM_TOKENS}
    outputs = engine.generate(given, use_tqdm=False, output_logits=True, **settings)
    return [torch.as_tensor(output.outputs[0].logits) for output in outputs]


def metric(engine: LLM, name: str) -> float:
    found: Any = {one.name: one for one in engine.get_metrics()}[f"vllm:{name}"]
    return float(found.value)


def assert_all_same(found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert_same(one, other)


@pytest.fixture(scope="module", params=_NAMES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / request.param
    write_model(request.param, folder)
    return folder


@pytest.fixture(scope="module")
def alone(folder: Path) -> list[torch.Tensor]:
    """The logits of each prompt, which is computed whole, with nothing beside it."""
    with started(folder, max_num_batched_tokens=2048) as engine:
        found = [logits_of(engine, [prompt])[0] for prompt in PROMPTS]
        assert_all_same(logits_of(engine, PROMPTS), found)
        return found


def test_chunks_beside_others(
    folder: Path, alone: list[torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With other instructions, too."""
    monkeypatch.setenv("VLLM_FORK_CPU_ISA", "avx2")
    with started(folder, max_num_batched_tokens=24) as engine:
        assert_all_same(logits_of(engine, PROMPTS), alone)
        assert_all_same(logits_of(engine, PROMPTS[::-1]), alone[::-1])


def test_token_by_token(
    folder: Path, alone: list[torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With two threads, too."""
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    with started(folder, max_num_batched_tokens=1, max_num_seqs=1) as engine:
        assert_all_same(logits_of(engine, PROMPTS[:4]), alone[:4])


def test_states_of_the_prefix_cache(folder: Path, alone: list[torch.Tensor]) -> None:
    """Chunks end where blocks do, and begin with states that other requests have left."""
    arguments: dict[str, Any] = {"enable_prefix_caching": True, "block_size": 16}
    with started(folder, max_num_batched_tokens=300, **arguments) as engine:
        assert_all_same(logits_of(engine, PROMPTS), alone)
        shuffled = random.Random(0).sample(range(len(PROMPTS)), len(PROMPTS))
        again = logits_of(engine, [PROMPTS[i] for i in shuffled])
        assert_all_same(again, [alone[i] for i in shuffled])
        assert metric(engine, "prefix_cache_hits") >= 3 * 64


_FEW_BLOCKS = {"zamba2": 16, "olmo_hybrid": 16, "lfm2": 24}
"""That hold one request of the longest length, of models for which 12 do not."""


@pytest.mark.parametrize("has_cache", [True, False], ids=["cache", "no-cache"])
def test_states_after_preemption(folder: Path, alone: list[torch.Tensor], has_cache: bool) -> None:
    """There are too few blocks for all requests, so that states are computed again."""
    if not has_cache and folder.name not in _ALWAYS:
        pytest.skip("most have all blocks that they will need from the beginning")
    arguments: dict[str, Any] = {"enable_prefix_caching": has_cache, "block_size": 16}
    num_blocks = _FEW_BLOCKS.get(folder.name, 12) if has_cache else 14
    with started(folder, num_gpu_blocks_override=num_blocks, **arguments) as engine:
        assert_all_same(logits_of(engine, PROMPTS), alone)
        assert metric(engine, "num_preemptions") > 0


@torch.no_grad()
def test_an_attached_model_has_the_same_bits(folder: Path, alone: list[torch.Tensor]) -> None:
    from transformers import AutoModelForCausalLM

    from vllm.deterministic import attach

    model = attach(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval())
    for prompt, logits in zip(PROMPTS, alone, strict=True):
        ids = torch.tensor([prompt + logits.argmax(-1).tolist()])
        assert_same(model(ids).logits[0, len(prompt) - 1 : -1], logits)


@torch.no_grad()
def test_transformers_compute_nearly_the_same(folder: Path, alone: list[torch.Tensor]) -> None:
    """In float32: the error is about that of Transformers in bfloat16."""
    from transformers import AutoModelForCausalLM

    exact = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    rounded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    own = other = 0.0
    for prompt, logits in zip(PROMPTS, alone, strict=True):
        ids = torch.tensor([prompt + logits.argmax(-1).tolist()])
        steps = slice(len(prompt) - 1, -1)
        expected = exact(ids, use_cache=False).logits[0, steps]
        own += float((logits - expected).square().sum())
        other += float((rounded(ids, use_cache=False).logits[0, steps] - expected).square().sum())
    assert own**0.5 < 1.5 * other**0.5
