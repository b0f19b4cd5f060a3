"""The attention backend XFORMERS: which keys each query sees, and what it refuses.

The mask is xformers' own; the sums over what it shows are PyTorch's here, since xformers has
kernels for GPUs alone, and so is what the Triton backend computes for requests of one token.
"""

from __future__ import annotations

import functools
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from xformers.ops import fmha

from tests.engines import MODEL, ROOT
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.engine.arg_utils import EngineArgs
from vllm.fork import xformers_backend as backend
from vllm.hooks import engine_args
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.attention.backends.registry import AttentionBackendEnum
from vllm.v1.attention.backends.triton_attn import TritonAttentionImpl
from vllm.v1.kv_cache_interface import FullAttentionSpec

HEADS, KV_HEADS, SIZE, BLOCK = 6, 2, 32, 16
SCALE = 0.2

Lengths = list[tuple[int, int]]
"""Of each request: tokens of the step, and tokens so far with them."""


def dense(query: Any, key: Any, value: Any, attn_bias: Any, scale: float) -> torch.Tensor:
    """Compute what ``memory_efficient_attention_forward`` computes, [1, n, groups, heads, size]."""
    mask = attn_bias.materialize((query.shape[1], key.shape[1]))
    q, k, v = (x.flatten(2, 3).transpose(1, 2) for x in (query, key, value))
    attended = scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
    return attended.transpose(1, 2).reshape(query.shape)


class Step:
    """A step of some requests, whose keys lie in pages that are not in order."""

    def __init__(self, lengths: Lengths) -> None:
        generator = torch.Generator().manual_seed(len(lengths))
        counts, totals = zip(*lengths, strict=True)
        self.lengths = lengths
        self.starts = torch.tensor([0, *counts]).cumsum(0).int()
        width = max(-(-total // BLOCK) for total in totals)
        pages = torch.randperm(len(lengths) * width, generator=generator)
        self.pages = pages.view(len(lengths), width).int()
        numbers = torch.randn(pages.numel(), KV_HEADS, BLOCK, 2 * SIZE, generator=generator)
        self.cache = numbers
        self.query = torch.randn(int(self.starts[-1]) + 3, HEADS, SIZE, generator=generator)
        self.common = CommonAttentionMetadata(
            query_start_loc=self.starts,
            query_start_loc_cpu=self.starts,
            seq_lens=torch.tensor(totals, dtype=torch.int32),
            num_reqs=len(lengths),
            num_actual_tokens=int(self.starts[-1]),
            max_query_len=max(counts),
            max_seq_len=max(totals),
            block_table_tensor=self.pages,
            slot_mapping=torch.zeros(int(self.starts[-1]), dtype=torch.int64),
        )

    def expected(self, request: int, window: int) -> torch.Tensor:
        """Return [tokens, heads, size] of one request, by itself."""
        count, total = self.lengths[request]
        kept = self.cache[self.pages[request].long()].transpose(1, 2).flatten(0, 1)[:total]
        keys, values = kept.repeat_interleave(HEADS // KV_HEADS, dim=1).split(SIZE, dim=-1)
        distance = torch.arange(total - count, total)[:, None] - torch.arange(total)
        seen = (distance >= 0) & (distance < (window or total))
        start = int(self.starts[request])
        q, k, v = (x.transpose(0, 1) for x in (self.query[start : start + count], keys, values))
        return scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=SCALE).transpose(0, 1)


@functools.cache
def config() -> VllmConfig:
    return EngineArgs(str(MODEL)).create_engine_config()


def builder() -> Any:
    spec = FullAttentionSpec(
        block_size=BLOCK, num_kv_heads=KV_HEADS, head_size=SIZE, dtype=torch.float32
    )
    return backend.XFormersMetadataBuilder(spec, [], config(), torch.device("cpu"))


def implementation(**options: Any) -> Any:
    with set_current_vllm_config(config()):
        arguments: Any = (HEADS, SIZE, SCALE, KV_HEADS, None, None, "auto")
        names: Any = ("num_heads", "head_size", "scale", "num_kv_heads")
        names += ("alibi_slopes", "sliding_window", "kv_cache_dtype")
        return backend.XFormersImpl(**(dict(zip(names, arguments, strict=True)) | options))


CASES: list[Lengths] = [
    [(5, 5)],
    [(40, 40), (17, 90), (2, 33)],  # a prompt, a chunk of one, drafts
    [(1, 50), (1, 1), (9, 9), (30, 64)],  # decoding comes first
    [(1, 20), (1, 35)],
]


@pytest.mark.parametrize("window", [0, 24])
@pytest.mark.parametrize("lengths", CASES, ids=str)
def test_each_query_sees_its_keys(
    lengths: Lengths, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Step(lengths)
    monkeypatch.setattr(fmha, "memory_efficient_attention_forward", dense)
    decoded: list[Any] = []

    def decode(own: Any, layer: Any, query: Any, *arguments: Any) -> torch.Tensor:
        metadata, output = arguments[-2:]
        decoded.append(metadata)
        assert len(query) == len(output) == metadata.num_actual_tokens
        return output.fill_(7)

    monkeypatch.setattr(TritonAttentionImpl, "forward", decode)
    metadata = builder().build(0, step.common)
    output = torch.zeros_like(step.query)
    own = implementation(sliding_window=window or None)
    own.forward(None, step.query, step.query, step.query, step.cache, metadata, output)
    for i, (count, _) in enumerate(lengths):
        found = output[int(step.starts[i]) : int(step.starts[i + 1])]
        if count > 1:
            torch.testing.assert_close(found, step.expected(i, window))
        else:
            assert (found == 7).all()
    singles = [i for i, (count, _) in enumerate(lengths) if count == 1]
    assert len(decoded) == bool(singles)
    for metadata in decoded:
        assert torch.equal(metadata.seq_lens, step.common.seq_lens[: len(singles)])
        assert torch.equal(metadata.block_table, step.pages[: len(singles)])
        assert metadata.max_query_len == 1
    assert (output[step.common.num_actual_tokens :] == 0).all()


def test_without_a_step_the_output_is_zero() -> None:
    output = torch.ones(3, HEADS, SIZE)
    implementation().forward(None, output, output, output, output, None, output)
    assert (output == 0).all()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"alibi_slopes": [0.5] * HEADS}, "which has ALiBi: choose another"),
        ({"logits_soft_cap": 30.0}, "which has a soft cap on its scores"),
    ],
)
def test_what_it_cannot_compute(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        implementation(**options)


@pytest.mark.parametrize("chosen", ["xformers", AttentionBackendEnum.XFORMERS])
def test_the_name_is_one_of_the_command_line(chosen: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_args, "check_attention_backend", lambda args: None)
    made = EngineArgs(str(MODEL), attention_backend=chosen).create_engine_config()
    assert made.attention_config.backend is AttentionBackendEnum.XFORMERS
    assert AttentionBackendEnum.XFORMERS.get_class() is backend.XFormersBackend


@pytest.mark.parametrize(
    "arguments", [{"attention_backend": "xformers"}, {"attention_config": {"backend": "XFORMERS"}}]
)
def test_on_a_cpu_it_is_refused(arguments: Any) -> None:
    with pytest.raises(ValueError, match="has kernels for NVIDIA GPUs alone: leave it out here"):
        EngineArgs(str(MODEL), **arguments).create_engine_config()


def test_without_the_package_it_says_how_to_get_it() -> None:
    program = (
        "import sys; sys.modules['xformers'] = None\n"
        "from vllm.v1.attention.backends.registry import AttentionBackendEnum\n"
        "AttentionBackendEnum.XFORMERS.get_class()"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert "needs its package: pip install 'vllm[xformers]'" in done.stderr
