"""Names the package without which vLLM cannot import a model, or prepare its inputs.

Why: vLLM looks into the code of a model in another process, and says no more than that it failed.
  The CPU target has no torchvision, which Transformers' processors of pictures need, so this is
  common. Some models import them only when the first picture, of the start's own, is prepared.
Upstream status: Bug in 0.32.0, to be reported (upstream-reports/missing-package.md).
Exit condition: Upstream says which package its model's code lacks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from vllm.fork.startup.model_config import config_of
from vllm.platforms import current_platform

if TYPE_CHECKING:
    from vllm.config import ModelConfig, VllmConfig
    from vllm.engine.arg_utils import EngineArgs

_FAILED = "failed to be inspected"
_OF_PYTORCH = ("torchvision", "torchaudio", "torchcodec")


def naming_missing_packages(create: Callable[[EngineArgs], ModelConfig]) -> Callable[..., Any]:
    """Decorate ``EngineArgs.create_model_config``: a model that cannot be imported is a ValueError
    that names what is missing.
    """

    @wraps(create)
    def create_or_say_why(args: EngineArgs) -> ModelConfig:
        try:
            return create(args)
        except ValueError as error:
            missing = _missing_package(args) if _FAILED in str(error) else None
            if missing is None:
                raise
            raise ValueError(_sentence(*missing)) from None

    return create_or_say_why


def check_input_packages(vllm_config: VllmConfig) -> None:
    """Prepare a picture if torchvision is missing, as the engine does at its start, to say so.

    Raises:
        ValueError: names the package that the model's inputs need.
    """
    from vllm.multimodal import MULTIMODAL_REGISTRY
    from vllm.multimodal.encoder_budget import MultiModalBudget

    config = vllm_config.model_config
    if find_spec("torchvision") is not None or not config.supports_multimodal_inputs:
        return
    try:
        MultiModalBudget(vllm_config, MULTIMODAL_REGISTRY, enable_cache=False)
    except Exception as error:
        if (package := _package_of(error)) is not None:
            raise ValueError(_sentence(config.architecture, package)) from None
        # Not for want of a package: the engine says it at the same place.


def _sentence(architecture: str, package: str) -> str:
    return (
        f"{architecture} needs the package {package}, which is not installed: "
        f"{_how_to_install(package)}."
    )


def _package_of(error: BaseException | None) -> str | None:
    """Return the package for want of which an error was raised, by itself or by its cause:
    Transformers' own error for a class of processors has no name.
    """
    while error is not None:
        if isinstance(error, ModuleNotFoundError) and error.name is not None:
            return error.name.partition(".")[0]
        error = error.__cause__
    return None


def _missing_package(args: EngineArgs) -> tuple[str, str] | None:
    """Return a model's architecture and the package that its code lacks; None if it lacks none."""
    from vllm.model_executor.models.registry import ModelRegistry

    for architecture in config_of(args).architectures or []:
        registered: Any = ModelRegistry.models.get(architecture)
        try:
            if registered is not None:
                registered.load_model_cls()
        except Exception as error:
            if (package := _package_of(error)) is not None:
                return architecture, package
            # Not for want of a package: what vLLM has logged says more.
    return None


def _how_to_install(package: str) -> str:
    if package not in _OF_PYTORCH:
        return f"pip install {package}"
    if current_platform.is_cpu():
        return (
            f"pip install {package} --index-url https://download.pytorch.org/whl/cpu (PyPI's is "
            "for CUDA, and breaks beside PyTorch for CPUs)"
        )
    return "pip install 'vllm[multimodal]'"
