"""A model that takes more than text is asked for text alone where a flag promises its answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from shutil import copy
from typing import Any

import numpy as np
import pytest
from transformers import Qwen2AudioConfig, WhisperFeatureExtractor

from tests.engines import MODEL
from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.entrypoints.serve.exception_handling.error_response import create_error_response
from vllm.exceptions import VLLMValidationError
from vllm.renderers import ChatParams
from vllm.v1.engine.input_processor import InputProcessor

LAYERS = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 4096}
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"
SOUND = (np.zeros(16000, dtype=np.float32), 16000)
FLAGS: list[tuple[dict[str, Any], str]] = [
    ({"hf_compat": True}, "hf_compat=True"),
    ({"hf_compat": "exact"}, 'hf_compat="exact"'),
    ({"deterministic": True}, "deterministic=True"),
]


@pytest.fixture(scope="module")
def processor(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., InputProcessor]:
    """Makes what all requests of an engine pass, of a model that hears; it has no weights."""
    folder = tmp_path_factory.mktemp("hearing")
    config = Qwen2AudioConfig(
        text_config={"model_type": "qwen2", "max_position_embeddings": 256, **LAYERS, **HEADS},
        audio_config={"num_mel_bins": 16, "d_model": 32, "encoder_layers": 1},
        architectures=["Qwen2AudioForConditionalGeneration"],
        audio_token_index=4095,
    )
    config.save_pretrained(folder)
    WhisperFeatureExtractor(feature_size=16).save_pretrained(folder)
    file = folder / "preprocessor_config.json"
    fields = json.loads(file.read_text()) | {"processor_class": "Qwen2AudioProcessor"}
    file.write_text(json.dumps(fields))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        copy(MODEL / name, folder)
    return cache(lambda **flags: InputProcessor(engine_config(folder, **flags)))


def engine_config(folder: Path, **flags: Any) -> VllmConfig:
    args = EngineArgs(str(folder), dtype="bfloat16", max_model_len=128, **flags)
    return args.create_engine_config()


def chat(*parts: dict[str, Any]) -> list[Any]:
    return [[{"role": "user", "content": [{"type": "text", "text": "What? "}, *parts]}]]


def render_chat(processor: InputProcessor, *parts: dict[str, Any], is_async: bool = False) -> Any:
    params = ChatParams(chat_template=TEMPLATE)
    if is_async:
        return asyncio.run(processor.renderer.render_chat_async(chat(*parts), params))
    return processor.renderer.render_chat(chat(*parts), params)


def render_prompt(processor: InputProcessor, **data: Any) -> Any:
    prompt: Any = {"prompt": "What? ", "multi_modal_data": data}
    return processor.renderer.render_cmpl([prompt])


def accept(processor: InputProcessor, modality: str) -> Any:
    """Hand over a request that another process has prepared."""
    request: Any = {
        "type": "multimodal", "prompt_token_ids": [5, 4095], "mm_kwargs": {modality: [None]},
        "mm_hashes": {modality: ["1"]}, "mm_placeholders": {modality: []},
    }  # fmt: skip
    return processor.process_inputs("0", request, SamplingParams(max_tokens=2), ("generate",))


WAYS: list[tuple[Callable[[InputProcessor], Any], str]] = [
    (lambda one: render_prompt(one, audio=SOUND), "audio"),
    (lambda one: render_prompt(one, image=0, video=0), "images and videos"),
    (lambda one: render_chat(one, {"type": "audio_url", "audio_url": {"url": "no"}}), "audio"),
    (lambda one: render_chat(one, {"type": "image_pil", "image_pil": 0}), "images"),
    (lambda one: render_chat(one, {"image_url": "no"}), "images"),
    (
        lambda one: render_chat(
            one, {"type": "input_audio", "input_audio": {}}, {"video_url": "no"}, is_async=True
        ),
        "audio and videos",
    ),
    (lambda one: accept(one, "vision_chunk"), "images"),
]


@pytest.mark.parametrize(("flags", "flag"), FLAGS, ids=[flag for _, flag in FLAGS])
def test_everything_but_text_is_refused_by_name(
    processor: Callable[..., InputProcessor], flags: dict[str, Any], flag: str
) -> None:
    """Before anything is fetched, or decoded: none of these is what it says."""
    for send, modalities in WAYS:
        with pytest.raises(VLLMValidationError) as raised:
            send(processor(**flags))
        assert str(raised.value) == (
            f"{flag} answers text alone, and promises nothing about {modalities}: leave them out "
            "of the request, or the flag out of the engine."
        )
        assert create_error_response(raised.value).error.code == 400


@pytest.mark.parametrize(("flags", "flag"), FLAGS, ids=[flag for _, flag in FLAGS])
def test_a_model_of_text_alone_is_shown_nothing_else(flags: dict[str, Any], flag: str) -> None:
    """Nor is it fetched: an address that nobody has is no error."""
    one = InputProcessor(engine_config(MODEL, **flags))
    with pytest.raises(VLLMValidationError) as raised:
        render_chat(one, {"type": "image_url", "image_url": {"url": "http://nobody.invalid/"}})
    assert str(raised.value) == "The model takes text alone: leave images out of the request."


@pytest.mark.parametrize("flags", [{}, {"hf_compat": True}, {"deterministic": True}], ids=str)
def test_text_alone_goes_on(
    processor: Callable[..., InputProcessor], flags: dict[str, Any]
) -> None:
    one = processor(**flags)
    (conversation,), (prompt,) = render_chat(one)
    assert conversation[0]["content"]
    params = SamplingParams(max_tokens=2)
    request = one.process_inputs("0", prompt, params, ("generate",))
    assert request.prompt_token_ids
    assert request.mm_features is None


def test_without_flags_vllm_decides(processor: Callable[..., InputProcessor]) -> None:
    for send, _ in WAYS[:4]:
        with pytest.raises(Exception, match=r".") as raised:  # nothing of it is what it says
            send(processor())
        assert "answers text alone" not in str(raised.value)
