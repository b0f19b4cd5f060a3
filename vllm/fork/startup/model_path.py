"""A model's name that can only be a folder, and there is none: said at once.

Why: Upstream calls such a path a bad name of the Hub, or asks the Hub for it.
Upstream status: Bug in 0.32.0, to be reported (upstream-reports/model-path.md).
Exit condition: Upstream says that a path is no folder.
"""

from __future__ import annotations

from pathlib import Path

from vllm.logger import init_logger

logger = init_logger(__name__)


def check_model_path(model: str) -> None:
    """Check that a model that is named by a path is there; say so if it might be one.

    Args:
        model: of the engine: a path, a name on a hub, or an address.

    Raises:
        ValueError: it is a path to nothing.
    """
    if "://" in model or Path(model).expanduser().exists():
        return
    parts = Path(model).parts
    if model.startswith(("/", "./", "../", "~")) or len(parts) > 2:
        raise ValueError(
            f"There is no model at {model} (looked for from {Path.cwd()}): correct the path, or "
            "name one of the Hub, as in facebook/opt-125m."
        )
    if len(parts) == 2 and Path(parts[0]).is_dir():
        logger.warning(
            "There is a folder %s here and no %s in it, so %s is looked for on the Hub.",
            parts[0],
            parts[1],
            model,
        )
