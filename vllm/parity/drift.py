"""How far hidden states are from Hugging Face's, layer by layer and operation by operation."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from vllm.fork.startup.torch_switches import with_fresh_switches
from vllm.hf_layers.engine.exact_models import cache_name

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from vllm import LLM

Outputs = dict[str, torch.Tensor]

PACKED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
"""Projections of vLLM, and those of Hugging Face that they hold."""

_ACTIVATIONS = ("act_fn", "activation_fn", "act")
"""Modules of one name that compute different parts of a gated MLP on the two sides."""

LOGITS = "logits"
"""What comes after the layers in `hf_outputs`."""

_STORE = "_parity_store"
_HANDLES = "_parity_handles"


@dataclass(frozen=True)
class LayerDrift:
    """Absolute differences of one layer's output, over tokens and hidden size.

    Attributes:
        maximum: of them.
        mean: of them.
        has_equal_bits: there is no difference.
    """

    maximum: float
    mean: float
    has_equal_bits: bool


def decoder_layers(model: nn.Module) -> tuple[str, nn.ModuleList]:
    """Return the name and the list of a model's decoder layers: its longest list of modules.

    Raises:
        ValueError: the model has no list of modules.
    """
    lists = [(name, m) for name, m in model.named_modules() if isinstance(m, nn.ModuleList)]
    if not lists:
        raise ValueError(f"{type(model).__name__} has no list of layers whose drift could be told.")
    return max(lists, key=lambda one: len(one[1]))


def start_layers(model: nn.Module) -> None:
    """Keep what each decoder layer returns from now on; see `take`."""
    _, layers = decoder_layers(model)
    _watch(model, {str(i): layer for i, layer in enumerate(layers)}, _with_residual)


def start_operations(model: nn.Module, layer: int) -> None:
    """Keep what each module within a layer returns from now on; see `take`."""
    _, layers = decoder_layers(model)
    _watch(model, {name: one for name, one in layers[layer].named_modules() if name}, _tensor)


def take(model: nn.Module) -> Outputs:
    """Return what was kept, float32 [num_tokens, width] by name in the order of calls, and end.

    Of a batch of Hugging Face's, the first text is kept.
    """
    for handle in vars(model).pop(_HANDLES):
        handle.remove()
    kept: dict[str, list[torch.Tensor]] = vars(model).pop(_STORE)
    return {name: torch.cat(parts) for name, parts in kept.items()}


def _watch(
    model: nn.Module, modules: dict[str, nn.Module], tensor_of: Callable[[Any], torch.Tensor | None]
) -> None:
    kept: dict[str, list[torch.Tensor]] = {}

    def keep(name: str, _: nn.Module, __: Any, output: Any) -> None:
        if (found := tensor_of(output)) is not None:
            first = found[0] if found.dim() > 2 else found  # of a batch
            kept.setdefault(name, []).append(first.detach().flatten(0, -2).float().cpu())

    handles = [one.register_forward_hook(partial(keep, name)) for name, one in modules.items()]
    vars(model).update({_STORE: kept, _HANDLES: handles})


def _tensor(output: Any) -> torch.Tensor | None:
    """Return a module's output; of several the first, as that of a norm beside the residual."""
    first = output[0] if isinstance(output, tuple) and output else output
    return first if isinstance(first, torch.Tensor) and first.dim() > 1 else None


def _with_residual(output: Any) -> torch.Tensor | None:
    """Return a layer's output; vLLM's layers return what Hugging Face's have added already."""
    first = _tensor(output)
    rest = output[1:] if isinstance(output, tuple) else ()
    if len(rest) == 1 and isinstance(rest[0], torch.Tensor) and first is not None:
        return rest[0] + first if rest[0].shape == first.shape else first
    return first


@with_fresh_switches()
@torch.inference_mode()
def hf_outputs(
    model: PreTrainedModel,
    token_ids: list[int],
    start: Callable[[nn.Module], None] = start_layers,
    num_cached: int | None = None,
    beside: Sequence[int] = (),
) -> Outputs:
    """Run Hugging Face's model over a text.

    Args:
        model: of Transformers.
        token_ids: the text.
        start: what is kept.
        num_cached: tokens that are computed at once, before the others come one by one from a KV
            cache; None computes all at once, without one.
        beside: a longer text in the same batch, for which this one is padded on the left.

    Returns:
        what is kept, and the logits.
    """
    num_padding = max(len(beside) - len(token_ids), 0)
    rows = [[token_ids[0]] * num_padding + token_ids, *([list(beside)] if beside else [])]
    ids = torch.tensor(rows, device=model.device)
    mask = torch.ones_like(ids)
    mask[0, :num_padding] = 0
    stops = [ids.shape[1]]
    if num_cached is not None:
        stops = [*range(num_padding + num_cached, ids.shape[1] + 1)]
    logits, cache, known = [], None, 0
    name = cache_name(model)
    start(model)
    for stop in stops:
        inputs = _inputs(model, ids, mask, slice(known, stop))
        output = model(**inputs, **{name: cache}, use_cache=num_cached is not None)
        cache, known = getattr(output, name), stop
        logits.append(output.logits[0].float().cpu())
    outputs = take(model) | {LOGITS: torch.cat(logits)}
    return {name: output[-len(token_ids) :] for name, output in outputs.items()}


def _inputs(
    model: PreTrainedModel, ids: torch.Tensor, mask: torch.Tensor, new: slice
) -> dict[str, torch.Tensor]:
    """Return the arguments that ``generate()`` gives a model for some tokens of a batch."""
    inputs = {"input_ids": ids[:, new], "attention_mask": mask[:, : new.stop]}
    if "position_ids" in inspect.signature(model.forward).parameters:
        inputs["position_ids"] = (mask.cumsum(-1) - 1).clamp_min(0)[:, new]
    return inputs


def engine_outputs(
    llm: LLM,
    token_ids: list[int],
    start: Callable[[nn.Module], None] = start_layers,
    num_tokens: int = 1,
) -> tuple[Outputs, list[int]]:
    """Run an engine's model over a prompt and greedy tokens, of which it does not see the last.

    Returns:
        what is kept, and the tokens.
    """
    from vllm import SamplingParams

    llm.apply_model(start)
    params = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)
    output = llm.generate({"prompt_token_ids": token_ids}, params, use_tqdm=False)[0].outputs[0]
    return llm.apply_model(take)[0], list(output.token_ids)


def compare_layers(a: Outputs, b: Outputs, num_tokens: int | None = None) -> list[LayerDrift]:
    """Return how far what two runs both have is apart, over the first tokens that both have."""
    found = []
    for name in (name for name in a if name in b):
        num = min(len(a[name]), len(b[name]), num_tokens or len(a[name]))
        difference = (a[name][:num] - b[name][:num]).abs()
        found.append(
            LayerDrift(
                maximum=float(difference.max()),
                mean=float(difference.mean()),
                has_equal_bits=bool((difference == 0).all()),
            )
        )
    return found


def first_different_layer(drift: list[LayerDrift]) -> int | None:
    """Return the first layer whose output differs."""
    return next((i for i, one in enumerate(drift) if not one.has_equal_bits), None)


def first_different_operation(hf: Outputs, engine: Outputs) -> str | None:
    """Return the first module of a layer whose output differs, by vLLM's name, in its order.

    What only one of the two sides has cannot be compared.
    """
    for name, output in engine.items():
        expected = _of_hf(hf, name)
        is_other = name.rpartition(".")[2] in _ACTIVATIONS
        if expected is None or is_other or expected.shape != output.shape:
            continue
        if not torch.equal(expected, output):
            return name
    return None


def _of_hf(hf: Outputs, name: str) -> torch.Tensor | None:
    parent, _, last = name.rpartition(".")
    if last not in PACKED:
        return hf.get(name)
    parts = [hf.get(f"{parent}.{part}" if parent else part) for part in PACKED[last]]
    found = [part for part in parts if part is not None]
    return torch.cat(found, -1) if len(found) == len(parts) else None
