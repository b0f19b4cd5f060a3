"""A CUDA installation without upstream's compiled files, as VLLM_KERNELS=source makes it.

The GPU is only said to be there; operators compute on the CPU, where they are held to upstream's
compiled ones and to the layers' ``forward_native``.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from distribution.pins import load_pin
from distribution.pristine import build_folder, pristine_text
from distribution.tree import assembled_tree
from tests.engines import MODEL, ROOT
from vllm import _custom_ops
from vllm.fork.source_kernels import operators
from vllm.fork.startup.torch_switches import fresh_switches
from vllm.fork_kernels.library import LIBRARY_VARIABLE, library_path

_PROBE, _SWITCHES_PROBE = (
    Path(__file__).with_name(f"{name}_probe.py") for name in ("source_kernels", "switches")
)
_REFUSED = (
    "is one of vLLM's compiled kernels, which this installation leaves out "
    "(VLLM_KERNELS=source): use a model and options that do without it, or install with "
    "VLLM_KERNELS=all."
)


# --- the installation ----------------------------------------------------------------------------
@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The assembled tree, from the files of this repository but in a build folder of its own."""
    root = tmp_path_factory.mktemp("source") / "repository"
    text = build_folder("cuda", root) / f"text-{load_pin('cuda').sha256[:12]}"
    text.parent.mkdir(parents=True)
    text.symlink_to(pristine_text("cuda"))
    for name in ("patches", "vllm", "upstream.toml"):
        (root / name).symlink_to(ROOT / name)
    return assembled_tree("cuda", link=True, kernels="source", root=root)


def run_probe(tree: Path, probe: Path = _PROBE) -> dict[str, Any]:
    names = ("VLLM_USE_V2_MODEL_RUNNER", "VLLM_USE_FLASHINFER_SAMPLER")
    variables = {name: value for name, value in os.environ.items() if name not in names}
    variables |= {
        "PYTHONPATH": str(tree),
        "VLLM_LOGGING_LEVEL": "ERROR",
        LIBRARY_VARIABLE: str(library_path()),
    }
    command = [sys.executable, str(probe), str(MODEL)]
    done = subprocess.run(
        command, env=variables, cwd=tree, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert Path(found["vllm"]).is_relative_to(tree)
    return found


@pytest.fixture(scope="module")
def found(tree: Path) -> dict[str, Any]:
    return run_probe(tree)


def test_it_holds_nothing_compiled(tree: Path) -> None:
    assert not [*tree.rglob("*.so"), *tree.rglob("vllm-rs")]
    assert (tree / "vllm" / "_C_stable_libtorch.py").exists()


@pytest.mark.parametrize("mode", ["plain", "eager", "compat"])
def test_models_are_made_with_attention_and_runner_that_do_without(
    found: dict[str, Any], mode: str
) -> None:
    norm = ["native"] if mode == "plain" else ["vllm_c", "native"]
    assert found[mode] == {"v2": False, "norm": norm, "attention": ["TritonAttentionImpl"]}
    assert found["sampler"] == "0"


@pytest.mark.parametrize(
    ("flag", "attention"),
    [("deterministic", "PortableAttentionImpl"), ("hf_compat", "TritonAttentionImpl")],
)
def test_steps_are_cuda_graphs_without_compiled_code(
    found: dict[str, Any], flag: str, attention: str
) -> None:
    assert found[flag] == {
        "v2": False,
        "norm": ["vllm_c", "native"],
        "attention": [attention],
        "eager": False,
        "mode": "NONE",
        "graphs": "FULL_DECODE_ONLY",
        "least": 1,
    }


def test_layers_have_their_native_bits(found: dict[str, Any]) -> None:
    assert len(found["native bits"]) == 19
    assert [name for name, same in found["native bits"].items() if not same] == []


def test_what_needs_a_compiled_kernel_is_refused_by_name(found: dict[str, Any]) -> None:
    assert found["absent"] == f"AttributeError: torch.ops._C.marlin_gemm {_REFUSED}"
    assert found["asked"] is False
    assert found["moe"] == f"AttributeError: torch.ops._moe_C.topk_softmax {_REFUSED}"
    refused = f"NotImplementedError: torch.ops._C.silu_and_mul_quant {_REFUSED}"
    assert found["refused"] == refused
    assert found["flash"].startswith("ValueError: ")
    assert "use TRITON_ATTN, or install with VLLM_KERNELS=all" in found["flash"]


def test_exact_mode_undoes_the_platforms_switches(tree: Path) -> None:
    """Attention by cuDNN is off as soon as vLLM's platform is imported; `generate()` has it."""
    found = run_probe(tree, _SWITCHES_PROBE)
    assert found["before"]["backends.cuda.cudnn_sdp_enabled"] is False
    assert found["computing"] == fresh_switches()
    assert found["computing"]["backends.cuda.cudnn_sdp_enabled"] is True


# --- operators -----------------------------------------------------------------------------------
def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 2


def agree(name: str, write: int | tuple[int, ...], *arguments: Any) -> None:
    """Compare an operator with upstream's of the same name for CPUs, in float32.

    Args:
        name: of both.
        write: the arguments that they write into.
        arguments: of both.
    """
    ours = [a.clone() if isinstance(a, torch.Tensor) else a for a in arguments]
    theirs = [a.clone() if isinstance(a, torch.Tensor) else a for a in arguments]
    getattr(operators, name)(*ours)
    getattr(torch.ops._C, name)(*theirs)
    for index in (write,) if isinstance(write, int) else write:
        assert not torch.equal(ours[index], arguments[index])
        # Upstream's erf for CPUs without AVX-512 errs by 1.2e-6.
        atol = 1e-6 if torch.cpu._is_avx512_supported() else 2e-6
        torch.testing.assert_close(ours[index], theirs[index], rtol=3e-6, atol=atol)


@pytest.mark.parametrize("name", ["silu_and_mul", "gelu_and_mul", "gelu_tanh_and_mul"])
def test_gated_activations_are_upstreams(name: str) -> None:
    agree(name, 0, torch.zeros(9, 48), numbers(9, 96))


@pytest.mark.parametrize("name", ["gelu_new", "gelu_fast", "gelu_quick"])
def test_activations_are_upstreams(name: str) -> None:
    agree(name, 0, torch.zeros(9, 96), numbers(9, 96))


def test_norms_are_upstreams() -> None:
    x, residual, weight = numbers(9, 96), numbers(9, 96, seed=1), numbers(96, seed=2)
    agree("rms_norm", 0, torch.zeros(9, 96), x, weight, 0.1)
    agree("fused_add_rms_norm", (0, 1), x, residual, weight, 0.1)


@pytest.mark.parametrize("is_neox", [True, False])
@pytest.mark.parametrize("rotary_dim", [64, 32])
def test_rotations_are_upstreams(is_neox: bool, rotary_dim: int) -> None:
    cache = numbers(50, rotary_dim, seed=2)
    rotated = (numbers(7, 256), numbers(7, 128, seed=1))
    positions = torch.arange(7) * 7
    agree("rotary_embedding", (1, 2), positions, *rotated, 64, cache, is_neox)


@pytest.mark.parametrize("is_neox", [True, False])
def test_an_inverse_rotation_at_an_offset_undoes_it(is_neox: bool) -> None:
    angles = numbers(50, 16)
    cache = torch.cat((angles.cos(), angles.sin()), dim=1)
    query, positions = numbers(7, 128), torch.arange(7) * 7
    turned = query.clone()
    operators.rotary_embedding(positions, turned, None, 64, cache, is_neox, 32)
    changed = (turned != query).view(7, 2, 64).any(0).any(0)
    assert changed.tolist() == [False] * 32 + [True] * 32
    operators.rotary_embedding(positions, turned, None, 64, cache, is_neox, 32, True)
    torch.testing.assert_close(turned, query)


def test_penalties_are_those_of_upstreams_other_devices() -> None:
    logits, shape = numbers(3, 50), (3, 50)
    prompt, output = (torch.rand(shape, generator=torch.Generator().manual_seed(n)) < 0.3
                      for n in (3, 4))  # fmt: skip
    penalties = torch.tensor([1.0, 1.3, 0.7])
    ours, theirs = logits.clone(), logits.clone()
    operators.apply_repetition_penalties_(ours, prompt, output, penalties)
    _custom_ops.apply_repetition_penalties_torch(theirs, prompt, output, penalties)
    assert not torch.equal(ours, logits)
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.int64, torch.bool])
def test_a_weak_tensor_is_the_same_memory_and_keeps_it_not(dtype: torch.dtype) -> None:
    strong = torch.zeros(6, 8, dtype=dtype)[1:5, ::2].T
    weak = operators.weak_ref_tensor(strong)
    assert (weak.shape, weak.stride(), weak.dtype) == (strong.shape, strong.stride(), dtype)
    strong[2, 3] = 1
    assert torch.equal(weak, strong)
    assert weak[2, 3] == 1
    alive = weakref.ref(strong.untyped_storage())
    base = weakref.ref(strong)
    del strong
    gc.collect()
    assert base() is None
    assert alive() is None
