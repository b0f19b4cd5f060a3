"""Two sizes of the KV cache on CPUs, of an argument and of a variable: which one counts.

Why: A size that is given as an argument is ignored without a word where the variable is set.
Upstream status: Bug in 0.32.0, to be reported (upstream-reports/kv-cache-size-twice.md).
Exit condition: Upstream warns, or lets the argument win.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from vllm.logger import init_logger
from vllm.platforms import current_platform
from vllm.utils.mem_constants import GiB_bytes

if TYPE_CHECKING:
    from vllm.engine.arg_utils import EngineArgs

logger = init_logger(__name__)

VARIABLE = "VLLM_CPU_KVCACHE_SPACE"
"""Of upstream, in GiB; on CPUs it replaces ``kv_cache_memory_bytes`` without a word."""


def warn_of_two_sizes(args: EngineArgs) -> None:
    """Say which size counts if an engine is given two.

    Args:
        args: of the engine.
    """
    text, given = os.environ.get(VARIABLE, ""), args.kv_cache_memory_bytes
    has_two = given is not None and text.isdigit() and int(text) * GiB_bytes != given
    if has_two and current_platform.is_cpu():
        logger.warning(
            "The environment variable %s=%s (GiB) is the size of the KV cache, and "
            "kv_cache_memory_bytes=%d does not count: unset the variable if it should.",
            VARIABLE, text, given,
        )  # fmt: skip
