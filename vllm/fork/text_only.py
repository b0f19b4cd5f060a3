"""Pictures, audio and video are refused where a flag promises bits or tokens: for text alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm.exceptions import VLLMValidationError
from vllm.fork.flags import ForkFlags

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.inputs import SingletonInput


def check_text_only(vllm_config: VllmConfig, *inputs: SingletonInput | None) -> None:
    """Refuse a request with anything but text, with a flag that promises what its answer is.

    Args:
        vllm_config: of the engine; without flags nothing is refused.
        inputs: of the request, processed: for the encoder, if there is one, and the decoder.

    Raises:
        VLLMValidationError: names the modalities and the flag.
    """
    flags = ForkFlags.of(vllm_config)
    if not (flags.hf_compat or flags.is_portable):
        return
    for one in inputs:
        if one is None or one["type"] != "multimodal":
            continue
        flag = "deterministic=True"
        if flags.hf_compat:
            flag = "hf_compat" if flags.hf_compat is True else f'hf_compat="{flags.hf_compat}"'
        raise VLLMValidationError(
            f"{flag} answers text alone, and promises nothing about {_listed(one['mm_hashes'])}: "
            "leave them out of the request, or the flag out of the engine."
        )


def _listed(modalities: object) -> str:
    names = {"image": "images", "video": "videos", "vision_chunk": "images and videos"}
    return " and ".join(names.get(str(one), str(one)) for one in sorted(modalities))  # type: ignore[call-overload]
