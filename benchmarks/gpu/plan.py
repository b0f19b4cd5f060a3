"""What is measured, the most important first: about half an hour with a GPU must be enough."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks.gpu.engines import MODES
from benchmarks.gpu.measurements import ROOT, Measurement

MODELS = ROOT / "build" / "gpu" / "models"

BUILD_SECONDS = 200.0
"""That the build is thought to take on 16 cores."""

BITS, BENCH = "bits", "bench"
"""Kinds of measurements: whether a device has the specification's bits, and how fast it is."""

_PACKAGE = "benchmarks.gpu."
_OTHER_CORES = {"VLLM_FORK_CUDA_TENSOR_CORES": "bfloat16"}
_SIMPLE_CORES = {"VLLM_FORK_CUDA_TENSOR_CORES": "mma"}
_IN_TURN = {"VLLM_FORK_CUDA_DEPENDENT_LAUNCH": "0"}
_OTHER_BITS = {"VLLM_FORK_OTHER_BITS": "1"}
"""An engine whose bits differ is timed all the same; that they differ is what `bits` shows."""


class Plan:
    """The measurements of a device.

    Args:
        device: "cuda" or "cpu".
        tokens: of each answer.
        rounds: that are timed.
        main: name of the model that is measured first; see `models.SHAPES`.
        second: of the one that is measured when there is time.
    """

    def __init__(
        self, device: str = "cuda", tokens: int = 128, rounds: int = 3, main: str = "8B",
        second: str = "1B",
    ) -> None:  # fmt: skip
        self._device = device
        self._on = ("--device", device)
        self._tokens = tokens
        self._rounds = rounds
        self._main = main
        self._second = second

    def measurements(self, kinds: tuple[str, ...] = (BITS, BENCH)) -> list[Measurement]:
        """Return all of some kinds, in their order."""
        more = [(BITS, self._more_bits()), (BENCH, self._more_bench())]
        return [one for kind, part in [*self._first(), *more] if kind in kinds for one in part]

    def first(self) -> list[str]:
        """Return the names of those that must fit into half an hour, if all is well."""
        return [one.name for _, part in self._first() for one in part if one.unless is None]

    def _first(self) -> list[tuple[str, Iterator[Measurement]]]:
        """Return them by their kinds: what kernels compute and how fast, then models."""
        return [
            (BITS, self._kernels_bits()),
            (BENCH, self._kernels(self._main)),
            (BITS, self._models_bits()),
            (BENCH, self._engines()),
        ]

    # --- bits -------------------------------------------------------------------------------------
    def _kernels_bits(self) -> Iterator[Measurement]:
        """If one hangs or has other bits: is it one of warpgroups, or one that begins early?"""
        check = self._bits("self-check", "digests", "self-check", expected=20, limit=60)
        yield check
        for suffix, environment in (("mma", _SIMPLE_CORES), ("kernels in turn", _IN_TURN)):
            name = f"{check.name}, {suffix}"
            yield replace(check, name=name, environment=environment, unless=check.name)
        yield self._bits(f"real shapes, {self._main}", "real_shapes", self._main, expected=60,
                         limit=150)  # fmt: skip
        yield self._sanitizer("memcheck")

    def _models_bits(self) -> Iterator[Measurement]:
        for way in ("attached", "engine", "graphs"):
            yield self._model_bits(way, "bfloat16")
        yield self._bits("exact, bfloat16", "exact_bits", "exact", "--dtype", "bfloat16",
                         expected=60, limit=150, on_device=False)  # fmt: skip
        yield self._bits("draws and penalties", "pytorch_bits", expected=20, limit=60)
        yield self._sanitizer("racecheck")

    def _more_bits(self) -> Iterator[Measurement]:
        yield self._bits("operations", "digests", "operations", expected=30, limit=90)
        yield self._bits(f"real shapes, {self._main}, bfloat16 cores", "real_shapes", self._main,
                         expected=60, limit=150, environment=_OTHER_CORES)  # fmt: skip
        yield self._bits(f"real shapes, {self._main}, mma", "real_shapes", self._main,
                         expected=60, limit=150, environment=_SIMPLE_CORES)  # fmt: skip
        yield self._model_bits("generate", "bfloat16")
        yield self._model_bits("full graphs", "bfloat16")
        for way in ("attached", "engine", "graphs", "generate"):
            yield self._model_bits(way, "float16")
        for mode, dtype in (("exact", "float16"), ("hf_compat", "bfloat16")):
            yield self._bits(f"{mode}, {dtype}", "exact_bits", mode, "--dtype", dtype,
                             expected=60, limit=150, on_device=False)  # fmt: skip

    def _sanitizer(self, tool: str) -> Measurement:
        return self._bits(tool, "sanitizer", tool, expected=60, limit=150)

    def _model_bits(self, way: str, dtype: str) -> Measurement:
        expected = 30 if way == "attached" else 60
        name = f"logits: {way}, {dtype}"
        return self._bits(name, "model_bits", way, "--dtype", dtype, expected=expected, limit=120)

    def _bits(
        self, name: str, module: str, *arguments: str, expected: float, limit: float,
        environment: dict[str, str] | None = None, on_device: bool = True,
    ) -> Measurement:  # fmt: skip
        given = (*arguments, *(self._on if on_device else ()))
        return Measurement(
            name, _PACKAGE + module, given, expected, limit, environment=environment or {}
        )

    # --- bench ------------------------------------------------------------------------------------
    def _engines(self) -> Iterator[Measurement]:
        yield self._model(self._main)
        for mode in ("plain", "deterministic", "deterministic, eager"):
            yield self._engine(self._main, mode)

    def _more_bench(self) -> Iterator[Measurement]:
        for mode in ("hf_compat", "exact", "transformers", "eager"):
            yield self._engine(self._main, mode)
        yield self._kernel("attention", self._main, ", mma", _SIMPLE_CORES)
        yield self._kernel("products", self._main, ", kernels in turn", _IN_TURN)
        yield from self._kernels(self._second)
        yield self._model(self._second)
        for mode in (*MODES, "transformers"):
            yield self._engine(self._second, mode)
        for model in (self._second, self._main):
            for mode in MODES:
                yield self._server(model, mode)

    def _kernels(self, model: str) -> Iterator[Measurement]:
        for what in ("products", "attention"):
            yield self._kernel(what, model)

    def _kernel(
        self, what: str, model: str, suffix: str = "", environment: dict[str, str] | None = None
    ) -> Measurement:
        given = (what, model, *self._on, "--rounds", str(10 * self._rounds))
        name = f"{what}, {model}{suffix}"
        return Measurement(
            name, _PACKAGE + "kernels", given, 60, 150, environment=environment or {}
        )

    def _model(self, model: str) -> Measurement:
        arguments = (model, str(_folder(model)), *self._on)
        folder = _folder(model)
        return Measurement(_made(model), _PACKAGE + "models", arguments, 60, 180, makes=folder)

    def _engine(self, model: str, mode: str) -> Measurement:
        arguments = (mode, str(_folder(model)), *self._on, *self._size())
        expected = {"plain": 150.0, "exact": 200.0}.get(mode, 100.0)
        return Measurement(f"engine, {model}, {mode}", _PACKAGE + "engines", arguments, expected,
                           1.4 * expected + 60, _made(model), _OTHER_BITS)  # fmt: skip

    def _server(self, model: str, mode: str) -> Measurement:
        arguments = (mode, str(_folder(model)), *self._size())
        return Measurement(f"server, {model}, {mode}", _PACKAGE + "server", arguments, 120, 300,
                           _made(model), _OTHER_BITS)  # fmt: skip

    def _size(self) -> tuple[str, ...]:
        return "--tokens", str(self._tokens), "--rounds", str(self._rounds)


def _folder(model: str) -> Path:
    return MODELS / model


def _made(model: str) -> str:
    return f"model, {model}"
