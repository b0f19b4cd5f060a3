"""Deterministic mode on a GPU: the CPU's bits, from the CUDA kernels, on tensors of a CUDA device.

The GPU is emulated (see tests/emulated_gpu). What it cannot show is what only hardware does.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from tests.deterministic.models import bundled_model, padded, random_model, token_ids
from tests.emulated_gpu.device import GPU, emulated_gpu, to_gpu
from tests.engines import MODEL, ROOT
from tests.live_weights.checkpoints import changed_checkpoint
from vllm import SamplingParams
from vllm.deterministic import attach
from vllm.deterministic.sampler import PortableSampler
from vllm.deterministic.self_check import EXPECTED, digests
from vllm.fork.speculation import DraftChecker
from vllm.fork_kernels.dependent_launches import dependent_launches
from vllm.v1.sample.logits_processor import LogitsProcessors
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.sampler import Sampler

PRODUCTS = {
    "bundled": (18, 25),
    "gemma2-2b": (6, 9),
    "gpt2": (6, 3),
    "mixtral-8x7b": (17, 24),
    "opt-125m": (6, 7),
    "phi3-mini": (6, 3),
    "qwen3-0.6b": (6, 9),
}
"""Products in a forward of each model, of rows with digits and without."""


pytestmark = pytest.mark.usefixtures("emulated_library")


def model(case: str, dtype: torch.dtype = torch.bfloat16) -> PreTrainedModel:
    return bundled_model(dtype) if case == "bundled" else random_model(case, dtype)


@pytest.mark.long
def test_the_start_up_check() -> None:
    """All groups, where a CPU computes some; see tests/kernels/product/test_self_check_paths.py."""
    with emulated_gpu() as gpu:
        assert dict(digests(GPU)) == EXPECTED
        assert gpu.calls["portable_digits_product"] == 6


def test_the_start_up_check_of_a_hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its many rows are multiplied with wgmma, in segments of several blocks, by norms' digits."""
    monkeypatch.setenv("VLLM_FORK_EMULATED_CAPABILITY", "9")
    name = "products of many rows that were just computed"
    with emulated_gpu():
        assert dict(digests(GPU, [name])) == {name: EXPECTED[name]}


def test_kernels_begin_early() -> None:
    with emulated_gpu():
        assert dependent_launches(GPU) == "on"


@pytest.mark.some(2)
@pytest.mark.parametrize("case", PRODUCTS)
def test_an_attached_model(case: str) -> None:
    """A prompt, and a batch with padding, then one more token with the cache.

    Norms and activations make the digits of the rows that products take, wherever these are seen
    to be their results alone.
    """
    batch = padded([token_ids(5), token_ids(9, seed=1)])
    with torch.no_grad():
        on_cpu = attach(model(case))
        expected = on_cpu(**batch, use_cache=True)
        more = _next(on_cpu, batch, expected)
    with emulated_gpu() as gpu:
        on_gpu = attach(to_gpu(model(case)))
        moved = {name: tensor.to(GPU) for name, tensor in batch.items()}
        gpu.calls.clear()
        found = on_gpu(**moved, use_cache=True)
        assert found.logits.device == GPU
        assert torch.equal(found.logits.cpu()[1], expected.logits[1])
        assert torch.equal(found.logits.cpu()[0, 4:], expected.logits[0, 4:])
        assert (gpu.calls["portable_digits_product"], gpu.calls["portable_product"]) == PRODUCTS[
            case
        ]
        assert torch.equal(_next(on_gpu, moved, found).cpu(), more)


def _next(model: Any, batch: dict[str, torch.Tensor], done: Any) -> torch.Tensor:
    """Return the logits after one more token of each row."""
    ones = torch.ones_like(batch["attention_mask"][:, :1])
    logits: torch.Tensor = model(
        batch["input_ids"][:, -1:],
        attention_mask=torch.cat((batch["attention_mask"], ones), dim=1),
        position_ids=batch["position_ids"][:, -1:] + 1,
        past_key_values=done.past_key_values,
    ).logits
    return logits


def test_a_model_on_two_devices_is_refused() -> None:
    mixed = model("gpt2")
    with emulated_gpu():
        to_gpu(mixed.transformer.h[1])
        with pytest.raises(ValueError, match=r"h\.1\.\S+ is on cuda:0, and others on cpu"):
            attach(mixed)


def test_a_device_without_kernels_is_refused() -> None:
    with pytest.raises(ValueError, match="it is on meta, for which there are no kernels"):
        attach(model("gpt2").to("meta"))


PARAMS = [
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.8, seed=1, top_k=40),
    SamplingParams(temperature=1.1, seed=2, top_p=0.8, min_p=0.02),
]


def sampled(device: torch.device | str, is_cut: bool) -> tuple[Any, list[str]]:
    """Return what the sampler makes of three rows of logits, and what has waited for the GPU.

    `is_cut`: whether the batch has rows with top_k and top_p.
    """
    with emulated_gpu() as gpu:
        requests = {str(i): SimpleNamespace(sampling_params=one) for i, one in enumerate(PARAMS)}
        runner: Any = SimpleNamespace(
            requests=requests,
            input_batch=SimpleNamespace(req_ids=list(requests)),
            seq_lens=torch.tensor([7, 12, 90, 0], dtype=torch.int32).to(device),
        )
        logits = torch.randn(3, 4096, generator=torch.Generator().manual_seed(0)) * 4
        logits, metadata = logits.to(device), _metadata(device, is_cut)
        gpu.waits.clear()
        output = PortableSampler(runner, Sampler())(logits, metadata)
        waits = list(gpu.waits)
        return (output.sampled_token_ids.cpu(), *map(torch.Tensor.cpu, _logprobs(output))), waits


def _logprobs(output: Any) -> list[torch.Tensor]:
    found = output.logprobs_tensors
    return [found.logprob_token_ids, found.logprobs, found.selected_token_ranks]


def _metadata(device: torch.device | str, is_cut: bool) -> SamplingMetadata:
    def column(name: str) -> torch.Tensor:
        return torch.tensor([getattr(one, name) for one in PARAMS]).to(device)

    top_k = torch.tensor([one.top_k if one.top_k > 0 else 4096 for one in PARAMS])
    return SamplingMetadata(
        temperature=column("temperature"),
        all_greedy=False,
        all_random=False,
        top_p=column("top_p") if is_cut else None,
        top_k=top_k.int().to(device) if is_cut else None,
        generators={},
        max_num_logprobs=5,
        logprob_token_ids=None,
        no_penalties=True,
        prompt_token_ids=None,
        frequency_penalties=column("frequency_penalty"),
        presence_penalties=column("presence_penalty"),
        repetition_penalties=column("repetition_penalty"),
        output_token_ids=[[] for _ in PARAMS],
        spec_token_ids=[[] for _ in PARAMS],
        allowed_token_ids_mask=None,
        bad_words_token_ids={},
        logitsprocs=LogitsProcessors(),
    )


@pytest.mark.parametrize("is_cut", [True, False])
def test_the_sampler_chooses_the_same_and_never_waits(is_cut: bool) -> None:
    found, waits = sampled(GPU, is_cut)
    expected, _ = sampled("cpu", is_cut)
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours, theirs)
    assert waits == []


def checked(device: torch.device | str) -> tuple[list[Any], list[str]]:
    """Return what two requests with two drafts, and one without, choose; and what has waited."""
    drafts = [2, 0, 2]
    with emulated_gpu() as gpu:
        requests = {
            str(i): SimpleNamespace(sampling_params=one, output_token_ids=[])
            for i, one in enumerate(PARAMS)
        }
        runner: Any = SimpleNamespace(
            requests=requests,
            input_batch=SimpleNamespace(req_ids=list(requests)),
            seq_lens=torch.tensor([7, 12, 90], dtype=torch.int32).to(device),
            discard_request_mask=SimpleNamespace(np=np.zeros(len(requests), dtype=bool)),
        )
        rows = sum(drafts) + len(drafts)
        logits = torch.randn(rows, 4096, generator=torch.Generator().manual_seed(2)) * 4
        proposed: Any = SimpleNamespace(
            num_draft_tokens=drafts,
            max_spec_len=2,
            draft_token_ids=torch.stack([logits[0].argmax()] * 4).to(device),
        )
        logits, metadata = logits.to(device), _metadata(device, is_cut=True)
        check = DraftChecker(runner, PortableSampler(runner, Sampler()))
        gpu.waits.clear()
        output = check(proposed, None, logits, metadata)
        waits = list(gpu.waits)
        return [output.sampled_token_ids.cpu(), *(x.cpu() for x in _logprobs(output))], waits


def test_drafts_wait_for_the_tokens_alone() -> None:
    """The CPU reads the drafts, and at each of two positions what was chosen."""
    found, waits = checked(GPU)
    expected, _ = checked("cpu")
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours, theirs)
    assert (expected[0][:, 1] >= 0).tolist() == [True, False, False]
    assert waits == ["aten::_to_copy"] * 3


@cache
def engine(*arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.deterministic.emulated_engine", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.long
def test_an_engine_on_the_kernels_of_a_gpu(emulated_library: Path) -> None:
    """Real scheduling, with chunks and pages: the tokens and log-probabilities of the CPU."""
    emulated, plain = engine(str(emulated_library)), engine()
    assert emulated["answers"] == plain["answers"]
    assert emulated["rows"] == plain["rows"] == [[8, 1]]
    assert plain["emulated"] == []
    assert set(emulated["emulated"]) == {
        *("channel_statistics", "equalising_exponents", "pack_weight", "portable_product"),
        *("portable_digits_product", "portable_norm", "portable_norm_digits", "portable_gated"),
        *("portable_gated_digits", "portable_rotary_table", "portable_rotate", "portable_append"),
        *("portable_rotate_append", "portable_attention", "portable_attention_digits"),
        *("portable_map", "portable_map_digits", "portable_log_softmax"),
        *("portable_argmax", "portable_top_k", "portable_filter", "portable_draw"),
    }


LAUNCHES_OF_A_LAYER = [
    *("portable_norm_digits", "portable_digits_product", "portable_rotate_append"),
    *("portable_attention_digits", "portable_attention_digits", "portable_digits_product"),
    *("portable_norm_digits", "portable_digits_product"),
    *("portable_gated_digits", "portable_digits_product"),
]
"""The second one of attention merges the parts of long sequences, or makes digits of what is whole
already."""


@pytest.mark.long
@pytest.mark.parametrize("length", [64, 2048])
def test_a_layer_is_ten_launches(emulated_library: Path, length: int) -> None:
    sizes = ("--length", str(length))
    counted = engine(str(emulated_library), "--launches", *sizes)
    assert counted["answers"] == engine(*sizes)["answers"]
    (steps,) = counted["launches"]
    assert {tokens for tokens, _ in steps} >= {1, 2, 16}
    assert all(launched == LAUNCHES_OF_A_LAYER for _, launched in steps)
    assert len(LAUNCHES_OF_A_LAYER) == 10


@pytest.mark.long
def test_steps_can_be_cuda_graphs(emulated_library: Path, tmp_path: Path) -> None:
    """Replayed with the memory that was theirs, they have the bits of steps that are computed.

    So they have after an update of the weights, which is packed into that memory.
    """
    changed = str(changed_checkpoint(MODEL, tmp_path / "changed"))
    captured = engine(str(emulated_library), "--captured", "--update", changed)
    assert captured["answers"] == engine()["answers"]
    assert captured["updated"] == engine("--model", changed)["answers"]
    assert captured["updated"] != captured["answers"]
    assert captured["replayed"] == [7]  # three of them after the update


PRODUCT = """
import sys, torch
import vllm.fork_kernels
torch.ops.load_library(sys.argv[1])
generator = torch.Generator().manual_seed(0)
weight = torch.randn(80, 300, generator=generator).bfloat16()
x = torch.randn(5, 300, generator=generator).bfloat16()
bits = []
for ops in (torch.ops.vllm_fork, torch.ops.vllm_fork_emulated):
    packed = ops.pack_weight(weight, None, 4)
    bits.append(ops.portable_product(x, packed, None, None, 80, 4, torch.float32))
assert torch.equal(*bits)
"""


@pytest.mark.some(2)
@pytest.mark.parametrize(
    ("cores", "error"),
    [
        ("int8", None),
        ("bfloat16", None),
        ("mma", None),
        ("float8", "VLLM_FORK_CUDA_TENSOR_CORES=float8 is not a kind of product"),
    ],
)
def test_tensor_cores_can_be_chosen(cores: str, error: str | None, emulated_library: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PRODUCT, str(emulated_library)],
        env=os.environ | {"VLLM_FORK_CUDA_TENSOR_CORES": cores},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert (done.returncode == 0) == (error is None), done.stderr
    assert error is None or error in done.stderr
