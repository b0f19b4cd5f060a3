"""Compiles the CUDA ops for tensors on the CPU, as ``torch.ops.vllm_fork_emulated``."""

from __future__ import annotations

import subprocess
from pathlib import Path

from torch.utils.cpp_extension import include_paths, library_paths

HERE = Path(__file__).parent
CSRC = HERE.parents[1] / "csrc"
NAMESPACE = "vllm_fork_emulated"

EMULATED = (
    *(
        "channel_statistics",
        "equalising_exponents",
        "pack_weight",
        "repack_weight",
        "unpack_weight",
    ),
    *("portable_product", "portable_digits_product", "sum_partials", "portable_map"),
    *("portable_map_digits", "portable_gated", "portable_gated_digits", "portable_norm"),
    *("portable_norm_digits", "portable_rotary_table", "portable_rotate", "portable_append"),
    *("portable_rotate_append", "portable_attention", "portable_attention_digits"),
    *("portable_log_softmax", "portable_argmax", "portable_top_k", "portable_filter"),
    *("portable_draw", "dependent_launches"),
)
"""Names of the ops."""

_SOURCES = (
    *(str(HERE / f"{name}.cpp") for name in ("guard", "launches")),
    "bindings/launches_cuda.cpp",
    *(f"bindings/{op}/portable_{op}_cuda.cpp" for op in ("attention", "logits", "product", "rows")),
    *("bindings/portable_checks.cpp", "bindings/product/portable_product_checks.cpp"),
    *("bindings/schemas.cpp", "cpu/portable/product/pack_weight.cpp"),
    *(f"cuda/attention/{name}.cu" for name in ("attention", "cache", "hopper/prompt_attention")),
    *(
        f"cuda/attention/hopper/prompt_attention_{name}.cu"
        for name in ("64", "adjusted", "adjusted_64")
    ),
    "cuda/logits/logits.cu",
    *(
        "cuda/product/product.cu",
        *(f"cuda/rows/{name}.cu" for name in ("functions", "norm", "rotary")),
    ),
)

EMULATION = (
    *("-std=c++20", "-O2", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"),
    f"-I{CSRC}",
    *("-U_FORTIFY_SOURCE", "-DVLLM_FORK_EMULATE_CUDA", "-fPIC"),
)
"""Options of g++ for kernels that are emulated."""

_OPTIONS = (
    *EMULATION,
    "-fvisibility=hidden",
    *("-DTORCH_TARGET_VERSION=0x020B000000000000", f"-Dvllm_fork={NAMESPACE}"),
)


def compiled_emulated_ops(folder: Path) -> Path:
    """Compile the ops, two files at a time, unless the folder has them.

    Args:
        folder: for what is compiled, of this run of tests alone.

    Returns:
        The library, which registers them when it is loaded.
    """
    library = folder / "emulated_ops.so"
    if library.exists():
        return library
    waiting = list(_SOURCES)
    running: list[subprocess.Popen[str]] = []
    while waiting or running:
        if waiting and len(running) < 2:
            running.append(_compile(waiting.pop(), folder))
        else:
            _finish(running.pop(0))
    made = folder / "unfinished.so"
    objects = [str(_object(source, folder)) for source in _SOURCES]
    libraries = [f"-L{library_paths()[0]}", "-ltorch_cpu", "-lc10"]
    _finish(_start("-shared", *objects, "-o", str(made), *libraries))
    return made.rename(library)


def _object(source: str, folder: Path) -> Path:
    return folder / f"{Path(source).name}.o"


def _compile(source: str, folder: Path) -> subprocess.Popen[str]:
    headers = [option for path in include_paths() for option in ("-isystem", path)]
    places = ["-x", "c++", "-c", str(CSRC / source), "-o", str(_object(source, folder))]
    return _start(*_OPTIONS, *headers, *places)


def _start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["g++", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def _finish(process: subprocess.Popen[str]) -> None:
    output, _ = process.communicate()
    assert process.returncode == 0, output
