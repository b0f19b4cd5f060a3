"""Adapters that cannot be served are refused before a step asks for them.

Why: Workers load an adapter in the first step of a request that has it. An error there ends the
  engine, and with it the answers of everybody. So each adapter is loaded by a call of its own
  before, whose error is an answer; again if its files have changed, since the engine may have
  forgotten it.
Upstream status: Bug in 0.32.0, to be reported (upstream-reports/adapter-ends-engine.md).
Exit condition: Upstream loads an adapter before it accepts a request that has it.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from vllm.fork.flags.fork_flags import ForkFlags
from vllm.v1.engine.exceptions import EngineDeadError

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.lora.request import LoRARequest

REFUSED = "The adapter "
"""How the error of a request begins whose adapter cannot be served."""

_CHECKED = "_checked_adapters"  # of an engine
# What upstream puts around the error of a worker, or of a call to another process.
_AROUND = re.compile(
    r"^(?:Call to \w+ method failed: )?(?:Worker failed with error ['\"])?(.*?)"
    r"(?:['\"], please check the stack trace above for the root cause)?$",
    re.DOTALL,
)


class CheckedAdapters:
    """Which adapters an engine has loaded, as their files are.

    Args:
        engine: has ``add_lora``, ``remove_lora`` and ``vllm_config``, as ``LLMEngine`` and
            ``EngineCore`` have.
    """

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._checked: dict[int, tuple[Any, ...]] = {}  # by the adapter's id

    @classmethod
    def of(cls, engine: Any) -> CheckedAdapters:
        """Return those of an engine, which are kept as long as it is."""
        if not hasattr(engine, _CHECKED):
            setattr(engine, _CHECKED, cls(engine))
        checked = getattr(engine, _CHECKED)
        assert isinstance(checked, cls)
        return checked

    def refusal(self, request: LoRARequest | None) -> str | None:
        """Return why an adapter cannot be served; None if it can, and without flags.

        Args:
            request: for the adapter; None for the model alone.

        Raises:
            EngineDeadError: there is no engine any more.
        """
        config = self._engine.vllm_config
        if request is None or config.lora_config is None or not ForkFlags.of(config).has_sampler:
            return None
        if self._checked.get(request.lora_int_id) == _key(request):
            return None
        if not request.load_inplace and request.lora_int_id in self._engine.list_loras():
            return None  # files that have changed are looked at when they are loaded
        try:
            self._engine.add_lora(request)
        except EngineDeadError:
            raise
        except Exception as error:  # whatever a loader raises
            if not request.load_inplace:  # of which the former weights may still be there
                self._engine.remove_lora(request.lora_int_id)
            return _sentence(request, str(error), config)
        self.take(request)
        return None

    def take(self, request: LoRARequest) -> None:
        """Remember that an adapter has been loaded from its files as they are."""
        self._checked[request.lora_int_id] = _key(request)


def _key(request: LoRARequest) -> tuple[Any, ...]:
    """Return what tells an adapter from others."""
    return request.lora_name, request.lora_path, _files(request.lora_path)


def _files(path: str) -> tuple[Any, ...] | None:
    """Return what tells the files of a folder from others; None for no folder of this machine."""
    try:
        entries = sorted(os.scandir(os.path.expanduser(path)), key=lambda one: one.name)
        stats = [(entry.name, entry.stat()) for entry in entries]
    except OSError:
        return None
    return tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats)


def _sentence(request: LoRARequest, error: str, config: VllmConfig) -> str:
    """Return one sentence of what is wrong with an adapter, and of what to do."""
    found = _AROUND.match(error)
    reason = (found[1] if found else error).strip().rstrip(".")
    if "max_lora_rank" in reason:
        advice = "raise max_lora_rank"
    elif "pip install peft" in reason:
        advice = "install it"
    elif "No adapter found" in reason:
        advice = "give the folder that PEFT's save_pretrained() has written"
    elif ForkFlags.of(config).hf_compat is True:
        advice = (
            'merge it into the model with PEFT, or try hf_compat="exact", which computes with PEFT'
        )
    else:
        advice = "merge it into the model with PEFT if it can be merged, or use another one"
    return f"{REFUSED}{request.lora_name!r} cannot be served ({reason}): {advice}."
