"""The weights of a loaded model: what loaders write reaches all that was made of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial, wraps
from typing import Any

import torch
from torch import nn

from vllm.fork.live_weights.packed import PackedParameter, PacksWeights, WeightsLostError
from vllm.fork.live_weights.rehearsal import (
    check_all_is_used,
    check_kind,
    check_numbers,
    rehearse,
    without_numbers,
)
from vllm.fork.live_weights.staging import StagedParameter, stand_in
from vllm.fork.live_weights.upstream_layers import UnknownPacking, packing_of
from vllm.fork.live_weights.writes import Coverage, Writes
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info
from vllm.model_executor.model_loader.reload.meta import to_meta_tensor
from vllm.model_executor.model_loader.reload.sanitize import restore_layer_refs
from vllm.model_executor.model_loader.weight_utils import default_weight_loader

Weights = Iterable[tuple[str, torch.Tensor]]

_MOST_NAMES = 4  # in a sentence


class LiveParameter:
    """A parameter whose loader also does what follows from new numbers.

    Args:
        name: of the parameter in its model.
        form: of the class, the shape and the attributes that loaders expect, on the meta device.
        param: as the layer has it.

    Attributes:
        staged: takes what is written, in place of the parameter; None if the layer reads it.
        copies: called, with the parameter's numbers, to pack them beside the parameter.
        coming: the places that an update writes to, as far as it was tried.
    """

    def __init__(self, name: str, form: torch.Tensor, param: Any) -> None:
        self.name = name
        self.form = form
        self.param = param
        self.staged: StagedParameter | None = None
        self.copies: list[Callable[[torch.Tensor], None]] = []
        self.coming = Coverage()
        self._new = Coverage()

    def load(
        self, loader: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> tuple[Any, Writes, bool]:
        """Let a loader write to the parameter, or to what stands for it.

        Returns:
            what it returned, what it has written, and whether the model's answers are others now.
        """
        if self.staged is not None:
            result, writes, is_changed = self.staged.load(loader, *args, **kwargs)
        else:
            with Writes(self.param) as writes:
                result = loader(self.param, *args, **kwargs)
            is_changed = bool(writes.spans)
        self._new.add(writes.spans)
        return result, writes, is_changed

    def is_new(self) -> bool:
        """Whether all of it has been written since `begin_anew`."""
        first = 0 if self.staged is not None else self.param.storage_offset()
        return self._new.has((first, first + self.form.numel()))

    def begin_anew(self) -> None:
        """Count from now on what is written."""
        self._new = Coverage()


class LiveWeights:
    """The weights of a model that can change while it answers.

    ``model.load_weights`` and the loaders of its parameters are replaced. Parameters that layers
    have packed and given up come back with their names, shapes and loaders, without their memory.

    Args:
        model: loaded, of vLLM.

    Attributes:
        version: grows when anything is written.

    Raises:
        UnknownPacking: see `packing_of`.
    """

    def __init__(self, model: Any) -> None:
        if not hasattr(model, "load_weights"):
            raise UnknownPacking("the model has no load_weights")
        self.version = 0
        self._upstream_load: Callable[..., Any] = model.load_weights
        self._parameters: dict[int, LiveParameter] = {}
        self._changed: set[LiveParameter] = set()
        self._broken: str | None = None
        self._is_rehearsal = False
        self._version_at_begin = 0
        if hasattr(model, "process_weights_after_loading"):
            raise UnknownPacking("the model computes something of its weights")
        layers = [(name, layer, packing_of(layer)) for name, layer in model.named_modules()]
        packed = [{} if one is None else one.packed_parameters(layer) for _, layer, one in layers]
        # Nothing was changed until here, so that upstream's way stays if a layer is not known.
        for (name, layer, packing), own in zip(layers, packed, strict=True):
            self._take_over(name, layer, packing, own)
        model.load_weights = self.load_weights

    def _take_over(
        self,
        layer_name: str,
        layer: nn.Module,
        packing: PacksWeights | None,
        packed: dict[str, PackedParameter],
    ) -> None:
        for name in [one for one, param in layer._parameters.items() if param is not None]:
            live = self._parameters.get(id(layer._parameters[name]))
            if live is None:
                live = self._watch(f"{layer_name}.{name}", layer, name)
            if packing is None or name not in packed:
                continue
            pack = partial(_pack_or_say, live.name, partial(packing.pack_again, layer, name))
            if packed[name].is_read:
                live.copies.append(partial(_pack_all, packed[name], pack))
            else:
                self._stage(live, layer, packed[name], pack)

    def _watch(self, full_name: str, layer: nn.Module, name: str) -> LiveParameter:
        """Let the loader of a parameter come here."""
        param: Any = layer._parameters[name]
        live = LiveParameter(full_name, _form_of(layer, name, param), param)
        self._parameters[id(param)] = live
        upstream = getattr(live.form, "weight_loader", default_weight_loader)
        param.weight_loader = self._loader_of(live, upstream)
        return live

    def _stage(
        self,
        live: LiveParameter,
        layer: nn.Module,
        packed: PackedParameter,
        pack: Callable[[int, torch.Tensor], None],
    ) -> None:
        """Let what is written to a parameter be packed, as the layer does not read it."""
        live.staged = StagedParameter(live.form, live.param.device, packed, pack)
        if live.param.numel() == 0:  # given up; else it has what is packed
            loader = live.param.weight_loader
            live.param = stand_in(live.form, live.param.device)
            live.param.weight_loader = loader
            # Some models copy to a parameter, and ask no loader (gpt-oss's experts).
            live.param.copy_ = partial(self._loader_of(live, default_weight_loader), live.param)
            layer._parameters[live.name.rpartition(".")[2]] = live.param

    def _loader_of(self, live: LiveParameter, upstream: Callable[..., Any]) -> Callable[..., Any]:
        """Return what stands for a loader of a parameter."""

        @wraps(upstream)
        def load(param: Any, loaded_weight: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            check_kind(live.form, loaded_weight)
            if self._is_rehearsal:
                result, writes = rehearse(live.form, upstream, loaded_weight, *args, **kwargs)
                live.coming.add(writes.spans)
            else:
                result, writes, changed = live.load(upstream, loaded_weight, *args, **kwargs)
                self.version += changed
                self._changed.add(live)
            check_all_is_used(loaded_weight, writes.num_copied)
            return result

        return load

    def load_weights(self, weights: Weights, *args: Any, **kwargs: Any) -> Any:
        """Load weights, all or some, by the names of the checkpoint (``model.load_weights``).

        A list is tried before anything is written. Layers whose weights are packed together have
        their new ones once all of them are there, in this call or a later one.

        Args:
            weights: names and tensors, whole ones.
            args: of the model's own method.
            kwargs: likewise.

        Raises:
            ValueError: a name or a shape is not the model's, or weights could not be read or
                packed; the sentence says whether anything was changed.
        """
        if isinstance(weights, list | tuple):
            self.check(weights, *args, **kwargs)
            self._forget_what_comes_again()
        before = self.version
        last = _LastName(weights)
        try:
            result = self._upstream_load(last, *args, **kwargs)
            self._pack_copies()
        except Exception as error:
            self._forget()  # or pieces of this update would be taken for some of the next
            if self.version == before and not isinstance(error, WeightsLostError):
                raise ValueError(f"{_wrong(last.name, error)} Nothing was changed.") from error
            self._break(_wrong(last.name, error))
            raise ValueError(self._broken) from error
        self._note_what_is_whole()
        return result

    def check(self, weights: Weights, *args: Any, **kwargs: Any) -> None:
        """Try whether weights can be loaded, by their names and shapes; nothing is written.

        Args:
            weights: names and tensors, of which only the shapes and dtypes are looked at.
            args: of the model's own ``load_weights``.
            kwargs: likewise.

        Raises:
            ValueError: a name or a shape is not the model's.
        """
        self._is_rehearsal = True
        for live in self._parameters.values():
            live.coming = Coverage()
        last = _LastName(weights)
        try:
            self._upstream_load(without_numbers(last), *args, **kwargs)
        except NotImplementedError:
            pass  # looks at numbers, which a rehearsal has not
        except Exception as error:
            raise ValueError(f"{_wrong(last.name, error)} Nothing was changed.") from error
        finally:
            self._is_rehearsal = False

    def begin(self) -> None:
        """Begin an update that comes in pieces, and has an end."""
        self._forget()
        self._version_at_begin = self.version

    def finish(self) -> None:
        """End an update.

        Raises:
            ValueError: some weights have not come, without which others cannot be packed.
        """
        missing = self._pending()
        self._forget()
        if missing is None:
            return
        if self.version == self._version_at_begin:
            raise ValueError(f"{missing} Nothing was changed.")
        self._break(missing)
        raise ValueError(self._broken)

    def obstacle(self) -> str | None:
        """Return why the model's answers would be those of no model; None if they are not."""
        return self._broken or self._pending()

    def _forget_what_comes_again(self) -> None:
        for live in self._parameters.values():
            if live.staged is not None:
                live.staged.forget_what_comes_again(live.coming)

    def _forget(self) -> None:
        for live in self._parameters.values():
            if live.staged is not None:
                live.staged.forget()

    def _pack_copies(self) -> None:
        for live in self._changed:
            for copy in live.copies:
                copy(live.param.data)
        self._changed.clear()

    @property
    def packs_weights(self) -> bool:
        """Whether there are parameters whose numbers are kept in another form alone."""
        return any(live.staged is not None for live in self._parameters.values())

    def _break(self, reason: str) -> None:
        self.discard(f"{reason} Some of the weights have changed, and others have not.")

    def discard(self, reason: str) -> None:
        """Say that the weights are lost until all of them have been loaded again."""
        self.version += 1
        self._broken = f"{reason} The engine answers again once all weights have been loaded."
        self._changed.clear()
        for live in self._parameters.values():
            live.begin_anew()

    def _note_what_is_whole(self) -> None:
        if self._broken and all(live.is_new() for live in self._parameters.values()):
            self._broken = None

    def _incomplete(self) -> list[LiveParameter]:
        return [
            live
            for live in self._parameters.values()
            if live.staged is not None and live.staged.is_incomplete
        ]

    def _pending(self) -> str | None:
        names = [live.name.removesuffix(".weight") for live in self._incomplete()]
        if not names:
            return None
        listed = ", ".join(names[:_MOST_NAMES])
        more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        return (
            f"Of the weights of {listed}{more} only some were given, and they are packed together: "
            "load all of them (q_proj, k_proj and v_proj, for one)."
        )


class _NotPackedError(Exception):
    """A weight cannot be packed.

    Args:
        name: of the parameter that has it, with others perhaps.
        reason: of the operator.
    """

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(reason)
        self.name = name


class _LastName:
    """Weights with numbers, and the name of the one that was asked for last."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self.name = ""

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in self._weights:
            self.name = f"{name} {list(tensor.shape)}"
            check_numbers(tensor)
            yield name, tensor


def _wrong(name: str, error: Exception) -> str:
    """Return a sentence about what was wrong with an update."""
    reason = str(error).strip().splitlines()
    said = reason[0].partition(". ")[0].rstrip(".") if reason else type(error).__name__
    if isinstance(error, KeyError):
        said = f"the model has no weight {said}"
    if isinstance(error, _NotPackedError):
        return f"The weights of {error.name} cannot be packed: {said}."
    what = f"The weight {name}" if name else "The checkpoint"
    return f"{what} cannot be loaded: {said}."


def _form_of(layer: nn.Module, name: str, param: Any) -> torch.Tensor:
    """Return what a parameter was when its layer was made, without memory."""
    recorded = get_layerwise_info(layer).restore_metadata[0].get(name)
    if recorded is None:
        return to_meta_tensor(param)
    recorded = to_meta_tensor(recorded)
    return restore_layer_refs(recorded, layer)


def _pack_or_say(
    name: str, pack: Callable[[int, torch.Tensor], None], part: int, rows: torch.Tensor
) -> None:
    try:
        pack(part, rows)
    except RuntimeError as error:
        raise _NotPackedError(name.removesuffix(".weight"), str(error)) from error


def _pack_all(
    packed: PackedParameter, pack: Callable[[int, torch.Tensor], None], numbers: torch.Tensor
) -> None:
    for part, (first, last) in enumerate(packed.parts(len(numbers))):
        pack(part, numbers[first:last])
