"""What new weights cost a model that is loaded: seconds, and memory beside what it has.

    python -m benchmarks.live_weights [MODEL] [--layers N] [--rounds 3] [--json FILE]

By default a model of random weights in TinyLlama's shape with 1.1 billion parameters, in bfloat16.
In each mode, a process of its own, rounds take turns: reading the checkpoint from disk alone, and
then loading what was read (``model.load_weights``), which packs it. The memory is the most that the
process had while it loaded tensors one at a time, beside what it had before, in layers' sizes.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.apart import printed_apart

MODES: dict[str, dict[str, Any]] = {
    "no flag": {},
    "hf_compat": {"hf_compat": True},
    "deterministic": {"deterministic": True},
}


def run_mode(mode: str, folder: str, rounds: int) -> dict[str, Any]:
    """Return what a mode took; in a process of its own, whose memory is measured."""
    arguments = [folder, "--rounds", str(rounds), "--side", mode]
    found: dict[str, Any] = printed_apart("benchmarks.live_weights", *arguments)
    return found


def side(mode: str, folder: Path, rounds: int) -> dict[str, Any]:
    """Load a model of a mode, and change its weights."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    from types import SimpleNamespace

    from tests.loaded_models import engine_config, model_of
    from vllm.fork.live_weights.install import let_weights_change

    make_group()
    config = engine_config(folder, **MODES[mode])
    model: Any = model_of(config)
    runner: Any = SimpleNamespace(
        vllm_config=config, get_model=lambda: model, reload_weights=lambda: None
    )
    let_weights_change(runner)
    reading, loading = [], []
    for _ in range(rounds):
        begin = time.perf_counter()
        tensors = list(tensors_of(folder))
        middle = time.perf_counter()
        model.load_weights(tensors)
        loading.append(time.perf_counter() - middle)
        reading.append(middle - begin)
        del tensors
        gc.collect()
    layers = [sum(parameter.nbytes for parameter in one.parameters()) for one in model.model.layers]
    return {
        "mode": mode,
        "reading": statistics.median(reading),
        "loading": statistics.median(loading),
        "bytes_beside": most_beside(model, folder),
        "bytes_of_a_layer": max(layers),
    }


def most_beside(model: Any, folder: Path) -> int:
    """Return the most memory that loading one tensor after the other takes, in bytes, beside the
    tensors, which are there before.
    """
    tensors = list(tensors_of(folder))
    ctypes.CDLL(None).malloc_trim(0)  # or what was free before could be taken and not be seen
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
    before = _status("VmRSS")
    for pair in tensors:
        model.load_weights([pair])
    return _status("VmHWM") - before


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith(name)))


def tensors_of(folder: Path) -> Iterator[tuple[str, Any]]:
    """Yield the tensors of a checkpoint, read and not mapped."""
    from safetensors import safe_open

    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - it is no dictionary
                yield name, tensors.get_tensor(name).clone()


def make_group() -> None:
    """Make a tensor parallel group of this process alone, which linear layers need."""
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.distributed import init_distributed_environment, initialize_model_parallel

    with set_current_vllm_config(VllmConfig()):
        store = tempfile.mktemp(prefix="rank")
        init_distributed_environment(1, 0, f"file://{store}", 0, "gloo")
        initialize_model_parallel(1, 1)


def as_table(rows: list[dict[str, Any]], title: str) -> Table:
    columns = ("mode", "reading, s", "loading, s", "to reading", "memory beside, layers")
    table = Table(*columns, title=title)
    for row in rows:
        table.add_row(
            row["mode"],
            f"{row['reading']:.2f}",
            f"{row['loading']:.2f}",
            f"{row['loading'] / row['reading']:.2f}",
            f"{row['bytes_beside'] / row['bytes_of_a_layer']:.2f}",
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="tinyllama-1.1b")
    parser.add_argument("--layers", type=int, help="instead of the model's")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--side", choices=MODES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        print(json.dumps(side(options.side, Path(options.model), options.rounds)))
        return
    from tools.make_random_model import make_random_model

    with tempfile.TemporaryDirectory() as folder:
        if not Path(options.model).exists():
            made = {} if options.layers is None else {"num_layers": options.layers}
            make_random_model(options.model, Path(folder), **made)
        model = options.model if Path(options.model).exists() else folder
        rows = [run_mode(mode, model, options.rounds) for mode in MODES]
    Console().print(as_table(rows, f"{Path(options.model).name}, bfloat16"))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
