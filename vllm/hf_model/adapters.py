"""LoRA adapters of a Transformers model, loaded and computed by PEFT.

PEFT puts its layers into a model, and several adapters into the same layers. Some of those do not
go together, and which do depends on the order in which they come. Here each adapter is put into the
model as it was, and the layers that are its own are exchanged when it is used (`layer_exchange`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from vllm.hf_model.layer_exchange import LayerExchange, NotServedError
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
        self._active = 0
        self._on_load = on_load
        self._capacity = config.max_cpu_loras or config.max_loras
        self._loaded: OrderedDict[int, bool] = OrderedDict()  # to whether pinned; oldest use first
        self._layers: dict[int, LayerExchange] = {}
        self._is_warming_up = False

    def activate(self, adapter_id: int) -> None:
        """Let the model compute with an adapter from now on; with none for 0.

        PEFT freezes a model to infer with it. Bits depend on that: PyTorch folds a batch of
        products into one if their weight requires a gradient (``should_fold`` in its
        LinearAlgebra.cpp).
        """
        if adapter_id == self._active:
            return
        if self._active:
            self._layers[self._active].take_out()
        if adapter_id:
            self._layers[adapter_id].put_in()
            self._model.requires_grad_(False)
        else:
            self._unfreeze()
        self._active = adapter_id

    def set_active_adapters(self, requests: set[LoRARequest], mapping: object) -> None:
        """Load the adapters of a step that are not there."""
        if not self._is_warming_up:
            for request in requests:
                self.add_adapter(request)

    def add_adapter(self, request: LoRARequest) -> bool:
        """Load an adapter; return whether it was not there.

        Raises:
            ValueError: PEFT cannot load it, or is not installed; or it is more than layers of the
                model; or all others are pinned. The others are as they were.
        """
        adapter_id = request.lora_int_id
        if adapter_id in self._loaded and not request.load_inplace:
            self._loaded.move_to_end(adapter_id)
            return False
        self.activate(0)
        layers = self._load(request)  # before any other goes
        self.remove_adapter(adapter_id)
        self._make_room()
        self._layers[adapter_id] = layers
        self._loaded[adapter_id] = False
        try:
            self.activate(adapter_id)
            self._on_load(adapter_id)
        except Exception:
            self.remove_adapter(adapter_id)
            raise
        return True

    def _load(self, request: LoRARequest) -> LayerExchange:
        """Return the layers of an adapter; the model is as before."""
        try:
            from peft import PeftConfig, PeftModel
        except ImportError:
            raise ValueError(
                'hf_compat="exact" computes LoRA adapters with PEFT: `pip install peft`.'
            ) from None
        path = get_adapter_absolute_path(request.lora_path)
        layers = LayerExchange(self._model)
        try:
            check_kind(PeftConfig.from_pretrained(path))
            with layers.recording():
                PeftModel.from_pretrained(self._model, path).eval()
        except NotServedError:
            raise
        except Exception as error:
            raise ValueError(
                f"PEFT cannot load the adapter {request.lora_name!r} from {path}: {error}"
            ) from error
        finally:
            self._unfreeze()
        return layers

    def _unfreeze(self) -> None:
        """Take back that PEFT freezes a model."""
        for parameter in self._trainable:
            parameter.requires_grad_(True)

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
        if adapter_id == self._active:
            self.activate(0)
        del self._layers[adapter_id]
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


def check_kind(config: Any) -> None:
    """Refuse adapters that are more than layers of a model.

    Args:
        config: PEFT's ``PeftConfig``.

    Raises:
        NotServedError: says what it is.
    """
    kind = getattr(config.peft_type, "value", config.peft_type)
    if config.is_prompt_learning or kind == "XLORA":
        raise NotServedError(f"{kind} is no change of the model's layers alone")
    if getattr(config, "alora_invocation_tokens", None):
        raise NotServedError(
            "an activated LoRA (alora_invocation_tokens) begins where PeftModel.generate() finds "
            "its tokens in a prompt, which an engine does not look for"
        )
    # These write into the model's own weights when they are loaded, OLoRA without a trace.
    beginning = getattr(config, "init_lora_weights", True)
    if isinstance(beginning, str) and beginning.lower() not in ("gaussian", "eva", "orthogonal"):
        raise NotServedError(
            f"init_lora_weights={beginning!r} changes the model's own weights; PEFT's "
            "save_pretrained() with path_initial_model_for_weight_conversion makes a LoRA of it"
        )


def exact_adapters(model: Any) -> PeftAdapters | None:
    """Return the adapters of a model that brings them itself, as exact mode's does."""
    adapters = getattr(model, "adapters", None)
    return adapters if isinstance(adapters, PeftAdapters) else None
