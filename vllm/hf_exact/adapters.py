"""LoRA adapters of a Transformers model, loaded and computed by PEFT."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from vllm.lora.utils import get_adapter_absolute_path

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from vllm.config import LoRAConfig
    from vllm.lora.request import LoRARequest


class PeftAdapters:
    """What ``LoRAModelRunnerMixin`` calls its ``lora_manager``, with the adapters in PEFT's layers.

    PEFT keeps adapters as they were saved, in float32 by default, adds their share to each
    projection and computes DoRA and what else it has; it has no limit on ranks.

    Args:
        model: of Transformers, into which PEFT puts its layers with the first adapter.
        config: of the engine.
        on_load: called with the id of an adapter that has been loaded, while it is active.
    """

    def __init__(
        self, model: PreTrainedModel, config: LoRAConfig, on_load: Callable[[int], None]
    ) -> None:
        self._model = model
        self._trainable = [one for one in model.parameters() if one.requires_grad]
        self._peft: Any = None
        self._active: int | None = None
        self._on_load = on_load
        self._capacity = config.max_cpu_loras or config.max_loras
        self._loaded: OrderedDict[int, bool] = OrderedDict()  # to whether pinned; oldest use first
        self._is_warming_up = False

    def activate(self, adapter_id: int) -> None:
        """Let the model compute with an adapter from now on; with none for 0.

        PEFT freezes a model to infer with it. Bits depend on that: PyTorch folds a batch of
        products into one if their weight requires a gradient (``should_fold`` in its
        LinearAlgebra.cpp).
        """
        if self._peft is None or adapter_id == self._active:
            return
        if adapter_id:
            self._peft.base_model.enable_adapter_layers()
            self._peft.set_adapter(str(adapter_id), inference_mode=True)
            self._peft.requires_grad_(False)
        else:
            self._peft.base_model.disable_adapter_layers()
            for parameter in self._trainable:
                parameter.requires_grad_(True)
        self._active = adapter_id

    def set_active_adapters(self, requests: set[LoRARequest], mapping: object) -> None:
        """Load the adapters of a step that are not there."""
        if not self._is_warming_up:
            for request in requests:
                self.add_adapter(request)

    def add_adapter(self, request: LoRARequest) -> bool:
        """Load an adapter; return whether it was not there.

        Raises:
            ValueError: PEFT cannot load it, or is not installed; or all others are pinned.
        """
        adapter_id = request.lora_int_id
        if request.load_inplace:
            self.remove_adapter(adapter_id)
        if adapter_id in self._loaded:
            self._loaded.move_to_end(adapter_id)
            return False
        self._make_room()
        self._load(request)
        self._loaded[adapter_id] = False
        self.activate(adapter_id)
        self._on_load(adapter_id)
        return True

    def _load(self, request: LoRARequest) -> None:
        try:
            from peft import PeftModel
        except ImportError:
            raise ValueError(
                'hf_compat="exact" computes LoRA adapters with PEFT: `pip install peft`.'
            ) from None
        path, name = get_adapter_absolute_path(request.lora_path), str(request.lora_int_id)
        try:
            if self._peft is None:
                self._peft = PeftModel.from_pretrained(self._model, path, adapter_name=name)
            else:
                self._peft.load_adapter(path, adapter_name=name)
        except Exception as error:
            raise ValueError(
                f"PEFT cannot load the adapter {request.lora_name!r} from {path}: {error}"
            ) from error
        self._peft.eval()
        self._active = None  # PEFT may have chosen the one that it loaded

    def _make_room(self) -> None:
        """Forget the adapters that were used longest ago."""
        while len(self._loaded) >= self._capacity:
            oldest = next((one for one, pinned in self._loaded.items() if not pinned), None)
            if oldest is None:
                raise ValueError(
                    f"all {self._capacity} adapters are pinned: raise max_cpu_loras, or remove one."
                )
            self.remove_adapter(oldest)

    def remove_adapter(self, adapter_id: int) -> bool:
        """Forget an adapter; return whether it was there."""
        if self._loaded.pop(adapter_id, None) is None:
            return False
        self._peft.delete_adapter(str(adapter_id))
        self._active = None  # nor is it known which one is chosen then
        return True

    def remove_all_adapters(self) -> None:
        """Forget all."""
        for adapter_id in list(self._loaded):
            self.remove_adapter(adapter_id)

    def pin_adapter(self, adapter_id: int) -> bool:
        """Keep an adapter whatever others are loaded.

        Raises:
            ValueError: it is not there.
        """
        if adapter_id not in self._loaded:
            raise ValueError(f"there is no adapter {adapter_id} to pin: load it first.")
        self._loaded[adapter_id] = True
        return True

    def list_adapters(self) -> set[int]:
        """Return the ids of those that are there."""
        return set(self._loaded)

    @contextmanager
    def dummy_lora_cache(self) -> Iterator[None]:
        """Warm up without adapters: they take no memory beforehand."""
        self._is_warming_up = True
        yield
        self._is_warming_up = False

    def add_dummy_lora(self, request: LoRARequest, rank: int) -> bool:
        """There are none; see `dummy_lora_cache`."""
        return False

    def get_dummy_lora_warmup_rank(self, default_rank: int) -> int:
        """Return what is asked for; see `dummy_lora_cache`."""
        return default_rank

    def supports_tower_connector_lora(self) -> bool:
        """Return False: there are no adapters of image towers."""
        return False


def exact_adapters(model: Any) -> PeftAdapters | None:
    """Return the adapters of a model that brings them itself, as exact mode's does."""
    adapters = getattr(model, "adapters", None)
    return adapters if isinstance(adapters, PeftAdapters) else None
