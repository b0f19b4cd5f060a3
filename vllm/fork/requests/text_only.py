"""Pictures, audio and video are refused where a flag promises bits or tokens: for text alone.

A request is looked at before vLLM fetches or processes anything of it, so that nothing else is said
to be wrong with it, and once more where requests come that were processed elsewhere.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from vllm.exceptions import VLLMValidationError
from vllm.fork.flags.fork_flags import ForkFlags

if TYPE_CHECKING:
    from vllm.config import VllmConfig

_MODALITIES = {"image": "images", "vision_chunk": "images", "audio": "audio", "video": "videos"}
"""How each is called in a sentence; names of fields and of vLLM's data contain the first form."""


def check_conversations(vllm_config: VllmConfig, conversations: Iterable[Any]) -> None:
    """Refuse messages of chats with anything but text, see `check_modalities`.

    Args:
        vllm_config: of the engine.
        conversations: lists of messages, as OpenAI's API has them.
    """
    names = [
        name
        for conversation in conversations
        for message in conversation
        for part in _parts(message)
        for name in _names(part)
        if any(word in name for word in _MODALITIES)
    ]
    check_modalities(vllm_config, names)


def _parts(message: Any) -> Iterator[Mapping[str, Any]]:
    content = message.get("content") if isinstance(message, Mapping) else None
    if isinstance(content, list):
        yield from (part for part in content if isinstance(part, Mapping))


def _names(part: Mapping[str, Any]) -> Collection[str]:
    """Return what tells the kind of a part: its type, or its fields where vLLM goes by these."""
    kind = part.get("type")
    by_fields = kind is None or part.get("uuid") is not None
    return [str(kind), *(part if by_fields else ())]


def check_inputs(vllm_config: VllmConfig, *inputs: Any) -> None:
    """Refuse processed inputs with anything but text, see `check_modalities`.

    Args:
        vllm_config: of the engine.
        inputs: for the encoder, if there is one, and for the decoder.
    """
    for one in inputs:
        if one is not None and one["type"] == "multimodal":
            check_modalities(vllm_config, one["mm_hashes"])


def check_modalities(vllm_config: VllmConfig, names: Iterable[str]) -> None:
    """Refuse all that is named, with a flag that promises what an answer is: before anything is
    fetched, also for a model that takes text alone.

    Args:
        vllm_config: of the engine; without flags nothing is refused here.
        names: of modalities, or of fields that hold them: "image", for one, or "audio_url".

    Raises:
        VLLMValidationError: names the modalities and the flag.
    """
    flags = ForkFlags.of(vllm_config)
    if not (flags.hf_compat or flags.is_portable):
        return
    found = {_said(name) for name in names}
    if not found:
        return
    said = " and ".join(sorted(found))
    if not vllm_config.model_config.is_multimodal_model:
        raise VLLMValidationError(f"The model takes text alone: leave {said} out of the request.")
    flag = flags.as_given
    raise VLLMValidationError(
        f"{flag} answers text alone, and promises nothing about {said}: leave them out of the "
        "request, or the flag out of the engine."
    )


def _said(name: str) -> str:
    return next((said for word, said in _MODALITIES.items() if word in name), name)
