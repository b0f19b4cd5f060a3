"""Which of a model's operations might depend on how many rows there are."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from vllm.hf_model.own_code import is_own_code
from vllm.hf_model.stand_ins import standing_in

_NOTHING_IS_COMPUTED = """
    alias arange cat chunk clone contiguous copy_ detach dropout embedding empty empty_like expand
    flatten full index index_select lift_fresh narrow new_empty ones permute repeat_interleave
    reshape scalar_tensor select slice split split_with_sizes squeeze stack t to _to_copy transpose
    type_as unbind unflatten unsqueeze _unsafe_view view zeros zeros_like
"""  # Nothing is dropped where a model does not train.

_EACH_ELEMENT_IS_ROUNDED_ONCE = """
    add add_ div div_ maximum minimum mul mul_ neg relu rsqrt rsub sqrt square sub sub_ where
    eq ge gt le lt ne clamp clamp_min clamp_max masked_fill bitwise_and bitwise_or bitwise_not
    logical_and logical_or logical_not
"""  # As IEEE 754 has it, by vector instructions as by any others.

_ROWS_ARE_SUMMED = {"layer_norm", "native_layer_norm"}  # in an order that follows from their width
_SUMS_OF_DIMENSIONS = {"mean", "sum"}

KEEP_TO_ROWS = frozenset(
    {*_NOTHING_IS_COMPUTED.split(), *_EACH_ELEMENT_IS_ROUNDED_ONCE.split()} | _ROWS_ARE_SUMMED
)
"""Names of operators."""


def keeps_to_rows(name: str, args: tuple[Any, ...]) -> bool:
    """Whether each row has the same bits among others as alone.

    Args:
        name: of an operator.
        args: its positional arguments.
    """
    if name in _SUMS_OF_DIMENSIONS:
        return args[1:2] in (([-1],), ([args[0].dim() - 1],))
    return name in KEEP_TO_ROWS or (name == "pow" and args[1:] == (2,))


class Operations(TorchDispatchMode):
    """Looks at the operations of a model outside of the layers for which something stands in.

    What `own_code` encloses is not looked at either.

    Args:
        model: with stand-ins.

    Attributes:
        others: names of operators for which `keeps_to_rows` does not hold.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.others: set[str] = set()
        self._model = model
        self._depth = 1  # what is done before the model is called is not looked at
        self._hooks: list[Any] = []

    def __enter__(self) -> Operations:
        self._hooks += [
            self._model.register_forward_pre_hook(self._come_out),
            self._model.register_forward_hook(self._go_in),
        ]
        for module in standing_in(self._model):
            self._hooks += [
                module.register_forward_pre_hook(self._go_in),
                module.register_forward_hook(self._come_out),
            ]
        super().__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, traceback)
        for hook in self._hooks:
            hook.remove()

    def _go_in(self, *_: object) -> None:
        self._depth += 1

    def _come_out(self, *_: object) -> None:
        self._depth -= 1

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Note an operation, and do it."""
        name = func.overloadpacket.__name__
        if not (self._depth or is_own_code()) and not keeps_to_rows(name, args):
            self.others.add(name)
        return func(*args, **(kwargs or {}))
