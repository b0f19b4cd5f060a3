"""Which releases of Transformers hf_compat is tested with: the one place that says so.

``generate()`` changes with each of them: processors treat odd cases in other ways, and helpers that
beams need take other arguments.
"""

from __future__ import annotations

import transformers
from packaging.specifiers import SpecifierSet

from vllm.logger import init_logger

logger = init_logger(__name__)

TESTED = ">=5.19,<5.20"
"""Releases that all tests of hf_compat pass with; the distribution requires one of them."""


def is_tested(version: str = transformers.__version__) -> bool:
    """Return whether `version` of Transformers is among them."""
    return SpecifierSet(TESTED).contains(version, prereleases=True)


def warn_of_untested_release() -> None:
    """Say so if another release is installed."""
    if not is_tested():
        logger.warning(
            "hf_compat is tested with transformers%s, and %s is installed, whose generate() may "
            "differ: compare with `python -m tests.hf_compat.generate_calls`, or install a tested "
            "release.",
            TESTED,
            transformers.__version__,
        )
