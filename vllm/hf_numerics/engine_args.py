"""What hf_compat's numerics and split_qkv ask of an engine, before its configuration is made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm.hf_numerics.dtype import hf_dtype
from vllm.hf_numerics.tensor_parallel import check_tensor_parallel_size
from vllm.logger import init_logger
from vllm.platforms import current_platform
from vllm.transformers_utils.config import get_config

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from vllm.engine.arg_utils import EngineArgs
    from vllm.fork.flags import ForkFlags

logger = init_logger(__name__)


def prepare_engine_args(args: EngineArgs, flags: ForkFlags) -> None:
    """Choose the dtype and the mode of execution that Hugging Face has, in place.

    Nothing changes without the flags.

    Raises:
        ValueError: see `check_tensor_parallel_size`.
    """
    if flags.splits_projections and args.tensor_parallel_size > 1:
        check_tensor_parallel_size(args.tensor_parallel_size, _config_of(args).get_text_config())
    if not flags.hf_compat:
        return
    if args.dtype == "auto" and (dtype := hf_dtype(args.model, args.revision, _config_of(args))):
        args.dtype = dtype
    if args.enforce_eager:
        return
    if current_platform.is_cpu():
        logger.info("hf_compat: enforce_eager, since compiled code does not round where HF does.")
        args.enforce_eager = True
    else:
        logger.warning(
            "hf_compat: compiled code does not round where HF does; --enforce-eager does."
        )


def _config_of(args: EngineArgs) -> PreTrainedConfig:
    overrides = args.hf_overrides
    return get_config(
        args.hf_config_path or args.model,
        args.trust_remote_code,
        args.revision,
        args.code_revision,
        args.config_format,
        hf_overrides_kw=None if callable(overrides) else overrides,
        hf_overrides_fn=overrides if callable(overrides) else None,
    )
