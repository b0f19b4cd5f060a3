"""What deterministic mode and hf_compat choose for an NVIDIA GPU, and refuse."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.emulated_gpu.device import GPU, emulated_gpu, to_gpu
from tests.engines import MODEL
from vllm.config import CompilationMode, CUDAGraphMode
from vllm.deterministic import engine_args
from vllm.engine.arg_utils import EngineArgs
from vllm.fork.flags.fork_flags import ForkFlags
from vllm.hf_layers.engine import engine_args as hf_engine_args
from vllm.hf_layers.products import single_row_products
from vllm.hf_layers.products.single_row_products import RowPlan
from vllm.platforms.interface import UnspecifiedPlatform
from vllm.v1.attention.backends.registry import AttentionBackendEnum

pytestmark = pytest.mark.usefixtures("emulated_library")


class Platform:
    """An NVIDIA GPU, as far as arguments are concerned."""

    device_type = "cuda"
    device_name = "NVIDIA TEST"

    def __init__(self, capability: int) -> None:
        self._capability = capability

    def is_cpu(self) -> bool:
        return False

    def is_cuda(self) -> bool:
        return True

    def is_unspecified(self) -> bool:
        return False

    def has_device_capability(self, capability: int) -> bool:
        return self._capability >= capability


def prepared(monkeypatch: pytest.MonkeyPatch, capability: int, **arguments: Any) -> EngineArgs:
    monkeypatch.setattr(engine_args, "current_platform", Platform(capability))
    args = EngineArgs(str(MODEL), deterministic=True, dtype="bfloat16", **arguments)
    for _ in range(2):  # vLLM may make a configuration twice
        engine_args.prepare_engine_args(args, ForkFlags.from_engine_args(args))
    return args


def test_the_arguments_of_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    with emulated_gpu():
        args = prepared(monkeypatch, 90)
    assert args.attention_backend is AttentionBackendEnum.TRITON_ATTN
    assert args.moe_backend == "triton"


@pytest.mark.parametrize(
    ("arguments", "graphs"),
    [
        ({}, CUDAGraphMode.FULL_DECODE_ONLY),
        ({"compilation_config": {"cudagraph_mode": "FULL"}}, CUDAGraphMode.FULL),
        ({"compilation_config": {"mode": 3}}, CUDAGraphMode.FULL_DECODE_ONLY),
        ({"compilation_config": {"cudagraph_mode": "NONE"}}, None),
        ({"enforce_eager": True}, None),
        ({"optimization_level": 0}, None),
        ({"enable_lora": True}, None),
        ({"hf_overrides": {"num_experts": 4}}, None),
    ],
)
def test_steps_of_decoding_are_cuda_graphs(
    monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any], graphs: CUDAGraphMode | None
) -> None:
    """Unless enforce_eager, adapters or experts forbid it. Code is never compiled."""
    with emulated_gpu():
        args = prepared(monkeypatch, 90, **arguments)
    assert args.enforce_eager is (graphs is None)
    if graphs is not None:
        assert args.compilation_config.mode is CompilationMode.NONE
        assert args.compilation_config.cudagraph_mode is graphs


def test_graphs_that_would_keep_adapters_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = {"compilation_config": {"cudagraph_mode": "FULL_DECODE_ONLY"}}
    with (
        emulated_gpu(),
        pytest.raises(ValueError, match="enable_lora=True and cudagraph_mode, since a gr"),
    ):
        prepared(monkeypatch, 90, **graphs, enable_lora=True)


@pytest.mark.parametrize("mode", ["PIECEWISE", "FULL_AND_PIECEWISE"])
def test_graphs_of_compiled_code_are_refused(monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    message = f'cudagraph_mode={mode}, whose graphs are pieces.*use "FULL_DECODE_ONLY" or "FULL"'
    with emulated_gpu(), pytest.raises(ValueError, match=message):
        prepared(monkeypatch, 90, compilation_config={"cudagraph_mode": mode})


def test_an_old_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"needs a GPU of compute capability 8\.0 or later"):
        prepared(monkeypatch, 75)


def test_a_machine_without_a_device_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_args, "current_platform", UnspecifiedPlatform())
    args = EngineArgs(str(MODEL), deterministic=True, dtype="bfloat16")
    with pytest.raises(ValueError, match=r"finds no device.*install with VLLM_TARGET_DEVICE=cpu"):
        engine_args.prepare_engine_args(args, ForkFlags.from_engine_args(args))


def test_a_library_without_cuda_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match=r"no kernels for NVIDIA TEST.*VLLM_TARGET_DEVICE=cuda"):
        prepared(monkeypatch, 90)


def test_attention_of_ones_own_choice_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = AttentionBackendEnum.FLASH_ATTN
    with emulated_gpu(), pytest.raises(ValueError, match="an attention backend, since it has its"):
        prepared(monkeypatch, 90, attention_backend=chosen)
    with emulated_gpu(), pytest.raises(ValueError, match="moe_backend='cutlass', since it has its"):
        prepared(monkeypatch, 90, moe_backend="cutlass")


# --- hf_compat -----------------------------------------------------------------------------------
def compat(monkeypatch: pytest.MonkeyPatch, **arguments: Any) -> EngineArgs:
    monkeypatch.setattr(hf_engine_args, "current_platform", Platform(90))
    args = EngineArgs(str(MODEL), **{"hf_compat": True, "dtype": "bfloat16", **arguments})
    for _ in range(2):  # vLLM may make a configuration twice
        hf_engine_args.prepare_engine_args(args, ForkFlags.from_engine_args(args))
    return args


@pytest.mark.parametrize(
    ("arguments", "mode", "graphs"),
    [
        ({}, CompilationMode.NONE, CUDAGraphMode.FULL_DECODE_ONLY),
        ({"enable_lora": True}, CompilationMode.NONE, CUDAGraphMode.FULL_DECODE_ONLY),
        (
            {"compilation_config": {"cudagraph_mode": "NONE"}},
            CompilationMode.NONE,
            CUDAGraphMode.NONE,
        ),
        ({"optimization_level": 0}, CompilationMode.NONE, CUDAGraphMode.NONE),
        ({"dtype": "float32"}, None, None),  # the last bits are not HF's anyway
        ({"hf_compat": False}, None, None),
        ({"enforce_eager": True}, None, None),
    ],
)
def test_hf_compat_in_16_bits_is_not_compiled(
    monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any], mode: CompilationMode | None,
    graphs: CUDAGraphMode | None,
) -> None:  # fmt: skip
    warnings: list[str] = []
    monkeypatch.setattr(hf_engine_args.logger, "warning", warnings.append)
    args = compat(monkeypatch, **arguments)
    assert warnings == []
    assert args.compilation_config.mode is mode
    assert args.compilation_config.cudagraph_mode is graphs
    assert args.enforce_eager is arguments.get("enforce_eager", False)


@pytest.mark.parametrize(
    "asked",
    [{"mode": 3}, {"cudagraph_mode": "PIECEWISE"}, {"cudagraph_mode": "FULL_AND_PIECEWISE"}],
)
def test_hf_compat_warns_of_compiled_code_that_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any]
) -> None:
    warnings: list[str] = []
    monkeypatch.setattr(hf_engine_args.logger, "warning", warnings.append)
    args = compat(monkeypatch, compilation_config=asked)
    assert args.compilation_config.mode == asked.get("mode")
    (warning,) = set(warnings)
    assert warning.startswith("hf_compat: the compilation_config asks for compiled code")


@pytest.mark.parametrize(("device", "has_blocks"), [("cpu", True), (GPU, False)])
def test_blocks_of_weights_are_for_the_caches_of_a_cpu(
    monkeypatch: pytest.MonkeyPatch, device: torch.device | str, has_blocks: bool
) -> None:
    """Where no number of rows shares a product with a row's own bits; on a GPU, rows are single."""
    layer: Any = torch.nn.Linear(1024, 2048, bias=False, dtype=torch.bfloat16)
    rows = torch.ones(32, 1, 1024, dtype=torch.bfloat16)
    with emulated_gpu():
        if device == GPU:
            layer, rows = to_gpu(layer), rows.to(GPU)
        monkeypatch.setattr(single_row_products, "cancelling_rows", lambda _: (layer, rows))
        monkeypatch.setattr(single_row_products, "_order", lambda *_: None)
        monkeypatch.setattr(
            single_row_products, "same_bits", lambda a, b: a.shape == b.shape and len(a) == 1
        )
        monkeypatch.setattr(single_row_products, "_in_groups", lambda *_: rows)
        plan = RowPlan(layer)
    assert (plan.order, plan.sizes) == (None, [])
    assert (plan.block_height > 0) is has_blocks
