"""Runs in the assembled tree without upstream's extensions, on a GPU that is only said to be there.

    python source_kernels_probe.py MODEL

prints as JSON what an engine would choose, and which layers have the bits of ``forward_native``
when they call the operators.
"""

from __future__ import annotations

import faked_gpu  # noqa: F401  # isort: skip  # before anything asks for the platform
import json
import os
import sys
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch

import vllm
import vllm.compilation.passes.pass_manager  # names operators when it is imported
import vllm.entrypoints.openai.api_server
import vllm.lora.model_manager
import vllm.v1.worker.gpu_worker
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.deterministic.attention import PortableMetadataBuilder
from vllm.distributed import ensure_model_parallel_initialized, init_distributed_environment
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.layers import activation
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.rotary_embedding import get_rope
from vllm.model_executor.model_loader.utils import initialize_model
from vllm.utils.network_utils import get_distributed_init_method, get_ip, get_open_port
from vllm.v1.attention.backends.triton_attn import TritonAttentionMetadataBuilder


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape))).bfloat16() * 3


def layers() -> Iterator[tuple[str, Any, tuple[torch.Tensor | None, ...]]]:
    """Yield layers that call an operator on a GPU, and their inputs."""
    x = numbers(7, 96)
    for name, layer in {
        "SiluAndMul": activation.SiluAndMul(),
        "MulAndSilu": activation.MulAndSilu(),
        "GeluAndMul": activation.GeluAndMul(),
        "GeluAndMul tanh": activation.GeluAndMul("tanh"),
        "FatreluAndMul": activation.FatreluAndMul(0.7),
        "SiluAndMulWithClamp": activation.SiluAndMulWithClamp(1.5, 1.7, 0.5),
        "NewGELU": activation.NewGELU(),
        "FastGELU": activation.FastGELU(),
        "QuickGELU": activation.QuickGELU(),
        "ReLUSquaredActivation": activation.ReLUSquaredActivation(),
    }.items():
        yield name, layer, (x,)
    for is_neox in (True, False):
        for rotary_dim in (64, 32):
            rope = {"rope_type": "default", "rope_theta": 1e4}
            rope |= {"partial_rotary_factor": rotary_dim / 64}
            layer = get_rope(64, 128, is_neox_style=is_neox, rope_parameters=rope)
            for key in (numbers(5, 128), None):
                about = f"RotaryEmbedding {is_neox} {rotary_dim} {key is None}"
                yield about, layer, (torch.arange(5) * 9, numbers(5, 256), key)


def has_native_bits(layer: Any, inputs: tuple[torch.Tensor | None, ...]) -> bool:
    """Whether ``forward_cuda``, which may work in place, computes what ``forward_native`` does."""
    copies = [x if x is None else x.clone() for x in inputs]
    expected, actual = layer.forward_native(*inputs), layer.forward_cuda(*copies)
    if isinstance(expected, torch.Tensor):
        expected, actual = (expected,), (actual,)
    pairs = zip(expected, actual, strict=True)
    return all(a is b is None or bool(torch.equal(a, b)) for a, b in pairs)


def norms_have_native_bits() -> bool:
    """Whether both norms of ``vllm.ir`` through the operators have its native ones' bits."""
    from vllm import ir

    weight = numbers(96)
    plain, fused = ir.ops.rms_norm.impls, ir.ops.fused_add_rms_norm.impls
    x, residual = numbers(7, 96), numbers(7, 96).flip(0)
    same = [torch.equal(plain["vllm_c"].impl_fn(x, w, 0.1), plain["native"].impl_fn(x, w, 0.1))
            for w in (weight, None)]  # fmt: skip
    expected = fused["native"].impl_fn(x, residual, weight, 0.1)
    actual = fused["vllm_c"].impl_fn(x.clone(), residual.clone(), weight, 0.1)
    return all(same) and all(map(torch.equal, expected, actual))


def outcome(call: Any) -> str:
    """Return "no error", or the sentence of the error."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def choices(config: VllmConfig) -> dict[str, Any]:
    """What an engine with `config` takes: runner, attention, norms."""
    with set_current_vllm_config(config):
        model = initialize_model(config)
        return {
            "v2": config.use_v2_model_runner,
            "norm": config.kernel_config.ir_op_priority.rms_norm,
            "attention": sorted(
                {type(m.impl).__name__ for m in model.modules() if isinstance(m, Attention)}
            ),
        }


def graphs(arguments: dict[str, Any], **flags: Any) -> dict[str, Any]:
    """What becomes of CUDA graphs with a flag, when an engine starts."""
    with mock.patch("vllm.deterministic.engine_args.has_kernels", return_value=True):
        config = EngineArgs(**arguments, **flags).create_engine_config()
    compilation = config.compilation_config
    builder = (
        PortableMetadataBuilder if "deterministic" in flags else TritonAttentionMetadataBuilder
    )
    support = builder.get_cudagraph_support(config, None)
    graph_mode = compilation.resolve_cudagraph_mode_and_sizes(support, "chosen", max_num_reqs=64)
    return {
        **choices(config),
        "eager": config.model_config.enforce_eager,
        "mode": compilation.mode.name,
        "graphs": graph_mode.name,
        "least": min(compilation.cudagraph_capture_sizes),
    }


def main() -> None:
    arguments: dict[str, Any] = {"model": sys.argv[1], "dtype": "bfloat16"}
    plain, eager, compat = (
        EngineArgs(**arguments, **more).create_engine_config()
        for more in ({}, {"enforce_eager": True}, {"hf_compat": True, "enforce_eager": True})
    )
    flash = EngineArgs(**arguments, attention_backend="FLASH_ATTN").create_engine_config()
    address = get_distributed_init_method(get_ip(), get_open_port())
    with set_current_vllm_config(eager):
        init_distributed_environment(1, 0, address, 0, "gloo")
        ensure_model_parallel_initialized(1, 1)
        torch.set_default_dtype(torch.bfloat16)
        same = {name: has_native_bits(layer, inputs) for name, layer, inputs in layers()}
        same["norms"] = norms_have_native_bits()
    x = torch.empty(1)
    found = {
        "vllm": vllm.__file__,
        "native bits": same,
        "plain": choices(plain),
        "eager": choices(eager),
        "compat": choices(compat),
        "deterministic": graphs(arguments, deterministic=True),
        "hf_compat": graphs(arguments, hf_compat=True),
        "flash": outcome(lambda: choices(flash)),
        "absent": outcome(lambda: torch.ops._C.marlin_gemm),
        "asked": hasattr(torch.ops._C, "marlin_gemm"),
        "refused": outcome(lambda: torch.ops._C.silu_and_mul_quant(x, x, x)),
        "moe": outcome(lambda: torch.ops._moe_C.topk_softmax),
        "sampler": os.environ["VLLM_USE_FLASHINFER_SAMPLER"],
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
