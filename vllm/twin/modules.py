"""Compares what the modules of both sides return, one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from vllm.hf_layers.definition.finding import ModuleDifference
from vllm.twin import engine_side, transformers_side
from vllm.twin.recording import recorded
from vllm.twin.setting import EngineSetting
from vllm.twin.twin import Twin

Outputs = dict[str, torch.Tensor]
"""The outputs of modules, [tokens, size], by their names."""

_LAYERS = ("layers.", "h.", "blocks.", "block.")


def compare_modules(twin: Twin, setting: EngineSetting) -> list[ModuleDifference]:
    """Compare the modules of all layers for the longest text, which is computed whole.

    Args:
        twin: to compute.
        setting: of the engine.

    Returns:
        In the order in which Transformers' modules end, those that both sides have by one name.
    """
    with twin.on_disk() as folder:
        engine, transformers = _outputs(twin, folder, setting)
    found = []
    for name, output in transformers.items():
        own = engine.get(_place(name))
        if own is not None and own.shape == output.shape:
            found.append(_compare(name, own, output))
    return [one for one in found if not _is_another(one, found)]


def _is_another(module: ModuleDifference, found: list[ModuleDifference]) -> bool:
    """Whether only a name is common: what the module is a part of agrees, although it does not."""
    parents = (one for one in found if one.name == module.name.rpartition(".")[0])
    return module.is_other and any(not parent.is_other for parent in parents)


def _compare(name: str, own: torch.Tensor, other: torch.Tensor) -> ModuleDifference:
    apart = (own.double() - other.double()).square().mean().sqrt()
    relative = apart / other.double().square().mean().sqrt()
    finite = float(relative.nan_to_num(nan=torch.inf)) if apart else 0.0
    return ModuleDifference(name, finite, torch.equal(own, other))


def _outputs(twin: Twin, folder: Path, setting: EngineSetting) -> tuple[Outputs, Outputs]:
    """Return the outputs of both sides' modules: the engine's by their places in a model,
    Transformers' by their names.
    """
    text = max(twin.texts(), key=len)
    of_engine: Outputs = {}
    with engine_side.engine(folder, setting, twin.longest) as started:
        model: Any = engine_side.runner_of(started).model
        with recorded(model, of_engine):
            engine_side.answers(started, [text])
    dtype = getattr(torch, setting.dtype)
    model = transformers_side.load(folder, dtype, setting, twin.longest)
    of_transformers: Outputs = {}
    with recorded(model, of_transformers), torch.inference_mode():
        model(torch.tensor([text], device=model.device))
    by_place = {place: one for name, one in of_engine.items() if (place := _place(name))}
    return by_place, of_transformers


def _place(name: str) -> str:
    """Return a module's name from "layers.0" on; "" for one that is in no layer, or is one."""
    starts = [name.find(one) for one in _LAYERS if name.startswith(one) or f".{one}" in name]
    if not starts:
        return ""
    place = name[min(starts) :]
    return place if place.count(".") > 1 else ""


def first_module(twin: Twin, setting: EngineSetting) -> str:
    """Return Transformers' name of the first module whose output differs; "" if none does, or if
    rounding hides it: in 16 bits.
    """
    if setting.dtype != "float32":
        return ""
    found = [one.name for one in compare_modules(twin, setting) if one.is_other]
    if not found:
        return ""
    first = found[0]
    while (parent := first.rpartition(".")[0]) in found:
        first = parent
    return first
