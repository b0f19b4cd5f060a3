"""Steps of an engine as CUDA graphs keep them, on a CPU.

A graph has the operations of a step with the memory of their arguments and results, and nothing of
the Python code that called them. What is replayed here is just that; so a step whose operations
depend on anything but what is in that memory has other results, as it would on a GPU.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.attention import Attention

_NOT_CAPTURED = (
    *("aten::_local_scalar_dense", "aten::nonzero", "aten::equal", "aten::masked_select"),
    *("aten::lift_fresh", "aten::_unique2", "aten::bincount"),
)
"""Operations that wait for a GPU, or bring it numbers from elsewhere."""


class _Capture(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self._calls: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = func._schema.name
        assert name not in _NOT_CAPTURED, f"{name} cannot be captured"
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        self._calls.append((func, args, kwargs, result))
        return result

    def replay(self) -> None:
        for func, args, kwargs, result in self._calls:
            again = func(*args, **kwargs)
            for kept, new in zip(tree_leaves(result), tree_leaves(again), strict=True):
                if isinstance(kept, torch.Tensor) and kept.data_ptr() != new.data_ptr():
                    kept.copy_(new)


class CapturedSteps:
    """Computes a model's steps of decoding by replaying the first one with as many tokens.

    Args:
        model: of a runner; its ``forward`` is replaced.

    Attributes:
        replayed: how many steps were.
    """

    def __init__(self, model: Any) -> None:
        self.replayed = 0
        self._forward = model.forward
        self._steps: dict[int, tuple[_Capture, list[int], torch.Tensor]] = {}
        for module in model.modules():
            if isinstance(module, Attention):
                module.use_direct_call = True  # so that what is inside is seen
        model.forward = self

    def __call__(self, input_ids: torch.Tensor, positions: torch.Tensor, **others: Any) -> Any:
        """As the model's ``forward``."""
        arguments = {"input_ids": input_ids, "positions": positions, **others}
        context, count = get_forward_context(), len(input_ids)
        step = next(iter(context.attn_metadata.values())) if context.attn_metadata else None
        if step is None or count != len(step.seq_lens):  # a prompt is in it
            return self._forward(**arguments)
        tables = (step.query_start_loc, step.seq_lens, step.block_table)
        slots = next(iter(context.slot_mapping.values()))
        places = [x.data_ptr() for x in (input_ids, positions, *tables, slots)]
        if count not in self._steps:
            capture = _Capture()
            with capture:
                result = self._forward(**arguments)
            self._steps[count] = (capture, places, result)
            return result
        capture, expected, result = self._steps[count]
        assert places == expected, "the step's arguments have moved"
        capture.replay()
        self.replayed += 1
        return result
