"""PyTorch's switches: which there are, what a fresh process has, and that they can be set back."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.backends import cuda

from vllm.fork.startup import torch_switches
from vllm.fork.startup.torch_switches import (
    MIXED,
    READ_ONLY,
    SWITCHES,
    fresh_switches,
    read_switches,
    use_fresh_switches,
    with_fresh_switches,
    write_switches,
)

LEFT_ALONE = {
    # Of torch: contexts of a thread, in which `generate()` beside the engine would be, too.
    **dict.fromkeys(
        (
            "enable_grad",
            "set_grad_enabled",
            "set_anomaly_enabled",
            "set_autocast_cache_enabled",
            "set_autocast_dtype",
            "set_autocast_enabled",
            *(
                f"set_autocast_{device}_{what}"
                for device in ("cpu", "gpu", "ipu", "xla")
                for what in ("dtype", "enabled")
            ),
        ),
        "a context of a thread",
    ),
    "set_default_device": "where tensors are made, and no bits of them",
    "set_default_tensor_type": "an older name for the default dtype and device",
    "set_num_threads": "chosen by the executor: see Threads in guarantees.md",
    "set_num_interop_threads": "no operation of the models here uses them",
    "set_printoptions": "what is printed",
    "set_rng_state": "draws have generators of their own",
    "set_warn_always": "what is warned of",
    "use_deterministic_algorithms": "an older name for the debug mode",
    # Of torch.backends.
    **dict.fromkeys(
        (f"backends.cuda.{name}_workspace_size" for name in ("blas", "cublas", "cublaslt")),
        "to read it would start CUDA; nothing sets it but a variable: see the test of variables",
    ),
    "backends.set_flags": "several others at once",
    "backends.cudnn.set_flags": "several others at once",
    "backends.miopen.set_flags": "several others at once",
    "backends.mkldnn.set_flags": "several others at once",
    "backends.nnpack.set_flags": "another name for _C._set_nnpack_enabled",
    "backends.opt_einsum.set_flags": "several others at once",
    "backends.disable_global_flags": "forbids to set others",
    "backends.quantized.supported_engines": "cannot be set",
    "backends.python_native.available_dsls": "cannot be set",
    "backends.python_native.all_dsls": "cannot be set",
    **dict.fromkeys(
        (
            f"backends.python_native.{verb}_{what}"
            for verb in ("enable", "disable")
            for what in ("operations", "dispatch_keys")
        ),
        "single operations: nothing here sets them",
    ),
    "backends.cuda.matmul.allow_fp16_reduced_precision_reduction": "with its second half in _C",
    "backends.cuda.matmul.allow_bf16_reduced_precision_reduction": "with its second half in _C",
}
"""Names that set something, and why they are not in the table."""

SETS = ("set_", "enable_", "disable_", "allow_", "use_", "preferred_")


def sets(name: str) -> bool:
    return name.startswith(SETS) or name.endswith("_workspace_size")


@pytest.fixture
def restored() -> Iterator[None]:
    before = read_switches()
    yield
    write_switches(before)


def names_of_torch() -> Iterator[str]:
    """Yield the names in torch and torch.backends that set something, as far as one can see."""
    yield from filter(sets, dir(torch))
    backends = torch.backends
    own = vars(type(backends))
    modules: dict[str, Any] = {"backends": backends.m}  # type: ignore[attr-defined]
    modules |= {
        f"backends.{name}": module
        for name, module in vars(backends.m).items()  # type: ignore[attr-defined]
        if isinstance(module, ModuleType) and module.__name__.startswith("torch.backends")
    }
    assert len(modules) > 12
    yield from (f"backends.{name}" for name, one in own.items() if hasattr(one, "__set__"))
    for path, module in modules.items():
        plain = getattr(module, "m", module)
        for name in {*dir(plain), *vars(type(module))}:
            if sets(name) and callable(getattr(module, name)):
                yield f"{path}.{name}"
        for name, one in vars(type(module)).items():
            if name.startswith("__"):
                continue
            if hasattr(one, "__set__"):
                yield f"{path}.{name}"
            elif hasattr(one, "fp32_precision"):
                yield f"{path}.{name}.fp32_precision"
    for name in cuda.cuBLASModule.__setattr__.__code__.co_consts:
        if isinstance(name, str) and name.isidentifier() and "_" in name:
            yield f"backends.cuda.matmul.{name}"


def low_level_names() -> Iterator[str]:
    """Yield what torch._C has to set what attention and products take."""
    words = ("sdp", "cublas", "cpu_allow", "carveout", "nnpack")
    for name in dir(torch._C):
        if name.startswith("_set_") and any(word in name for word in words):
            yield f"_C.{name}"


def test_every_switch_of_this_release_is_known() -> None:
    named = {name for table in (torch_switches._FUNCTIONS, torch_switches._PAIRS)
             for pair in table.items() for name in pair}  # fmt: skip
    written_by_public_names = {
        f"_C._set_{name}"
        for name in (
            "cublas_allow_tf32",
            "cublas_allow_fp16_accumulation",
            "math_sdp_allow_fp16_bf16_reduction",
            "sdp_use_cudnn",
            "sdp_use_flash",
            "sdp_use_math",
            "sdp_use_mem_efficient",
        )
    } | {READ_ONLY.replace("_get_", "_set_"), "set_default_dtype"}
    known = named | {*SWITCHES} | written_by_public_names | {*LEFT_ALONE}
    found = {*names_of_torch(), *low_level_names()}
    assert len(found) > 70
    assert sorted(found - known) == [], "new in this release: add them to the table, or say why not"
    assert {name for name in LEFT_ALONE if name.startswith("backends")} <= found


def test_a_fresh_process_has_pytorchs_switches() -> None:
    """Read by other means, in a process that knows nothing of the table."""
    code = (
        "import torch, json; b = torch.backends; print(json.dumps([b.cuda.cudnn_sdp_enabled(),"
        "b.cuda.matmul.fp32_precision, torch.get_float32_matmul_precision(),"
        "b.cuda.matmul.allow_tf32, b.cudnn.benchmark, str(torch.get_default_dtype())]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    fresh = fresh_switches()
    assert json.loads(done.stdout) == [
        fresh["backends.cuda.cudnn_sdp_enabled"],
        fresh["backends.cuda.matmul.fp32_precision"],
        fresh["get_float32_matmul_precision"],
        fresh["backends.cuda.matmul.allow_tf32"],
        fresh["backends.cudnn.benchmark"],
        f"torch.{fresh['get_default_dtype']}",
    ]
    assert fresh["backends.cuda.cudnn_sdp_enabled"] is True
    assert MIXED not in fresh.values()


def test_the_environment_chooses_the_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "1")
    assert fresh_switches.__wrapped__()["get_float32_matmul_precision"] == "high"


def test_what_a_process_has_changed_is_set_back(restored: None) -> None:
    """Among it older and newer names of one switch, which disagree."""
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.set_float32_matmul_precision("high")
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    torch.backends.fp32_precision = "tf32"  # type: ignore[attr-defined]
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"  # type: ignore[attr-defined]
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = (False, False)
    torch.set_default_dtype(torch.bfloat16)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.set_flush_denormal(True)
    assert read_switches()["get_float32_matmul_precision"] == MIXED
    changed = use_fresh_switches()
    assert read_switches() == fresh_switches()
    assert changed["backends.cuda.cudnn_sdp_enabled"] == (False, True)
    assert changed["set_flush_denormal"] == (True, False)
    assert changed["get_deterministic_debug_mode"] == (1, 0)
    assert use_fresh_switches() == {}


def test_a_while_ends(restored: None) -> None:
    torch.backends.cuda.enable_cudnn_sdp(False)

    @with_fresh_switches()
    def failing() -> None:
        assert torch.backends.cuda.cudnn_sdp_enabled()
        raise KeyError

    with pytest.raises(KeyError):
        failing()
    assert not torch.backends.cuda.cudnn_sdp_enabled()


def test_a_switch_that_refuses_leaves_no_other_changed(
    restored: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(value: bool) -> None:
        raise RuntimeError("not now")

    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.backends.cuda.enable_flash_sdp(False)
    monkeypatch.setattr(torch.backends.cuda, "enable_flash_sdp", refuse)
    with (
        pytest.raises(RuntimeError, match=r"flash_sdp_enabled is False, and cannot be set to True"),
        with_fresh_switches(),
    ):
        raise AssertionError
    assert not torch.backends.cuda.cudnn_sdp_enabled()


def test_the_order_of_attention_is_pytorchs_to_write(restored: None) -> None:
    """At its first attention on a GPU it may put cuDNN first, which a fresh process has not yet."""
    order = torch._C._get_sdp_priority_order()
    try:
        torch._C._set_sdp_priority_order([3, 1, 2, 0, 4])
        assert use_fresh_switches() == {}
        assert read_switches()[READ_ONLY] == [3, 1, 2, 0, 4]
    finally:
        torch._C._set_sdp_priority_order(order)


def test_what_cannot_be_set_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cuda, "enable_flash_sdp", lambda value: None)
    wanted = {"backends.cuda.flash_sdp_enabled": not torch.backends.cuda.flash_sdp_enabled()}
    with pytest.raises(RuntimeError, match=r"^torch\.backends\.cuda\.flash_sdp_enabled is True, "):
        write_switches(wanted)


def test_a_process_that_fails_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(RuntimeError, match=r"could not be read: /bin/false ended with status 1"):
        fresh_switches.__wrapped__()
