"""A model that wants a package that is not installed names it, and how to install it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import transformers
from transformers import AutoTokenizer, LlavaConfig, PaliGemmaConfig, SiglipImageProcessor

from tests.engines import MODEL
from vllm.engine.arg_utils import EngineArgs
from vllm.fork.startup.missing_packages import naming_missing_packages
from vllm.model_executor.models.registry import ModelRegistry


@pytest.fixture
def args(tmp_path: Path) -> EngineArgs:
    config = LlavaConfig(architectures=["LlavaForConditionalGeneration"])
    config.save_pretrained(tmp_path)
    return EngineArgs(str(tmp_path), skip_tokenizer_init=True)


def failed(_: Any) -> Any:
    raise ValueError("Model architectures [...] failed to be inspected. Please check the logs.")


def test_torchvision(args: EngineArgs) -> None:
    """It is not among what the CPU target and the tests install."""
    sentence = (
        r"^LlavaForConditionalGeneration needs the package torchvision, which is not installed: "
        r"pip install torchvision --index-url https://\S+/cpu \(PyPI's is for CUDA, .*\)\.$"
    )
    with pytest.raises(ValueError, match=sentence):
        args.create_engine_config()


def test_torchvision_that_is_imported_with_the_first_picture(tmp_path: Path) -> None:
    """vLLM's code of PaliGemma is importable without it."""
    config = PaliGemmaConfig(architectures=["PaliGemmaForConditionalGeneration"])
    config.save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(MODEL).save_pretrained(tmp_path)
    SiglipImageProcessor(image_seq_length=256).save_pretrained(tmp_path)
    sentence = "^PaliGemmaForConditionalGeneration needs the package torchvision, which is not ins"
    args = EngineArgs(str(tmp_path), max_model_len=512)
    with pytest.raises(ValueError, match=sentence):
        args.create_engine_config()
    args.limit_mm_per_prompt = {"image": 0}
    args.create_engine_config()


@pytest.mark.parametrize("kind", ["Qwen3_5", "Qwen3_5Moe", "Qwen4Exp"])
def test_text_needs_no_torchvision(kind: str, tmp_path: Path) -> None:
    """Their code in vLLM imports processors of pictures."""
    config = getattr(transformers, f"{kind}TextConfig")(architectures=[f"{kind}ForCausalLM"])
    config.save_pretrained(tmp_path)
    args = EngineArgs(str(tmp_path), skip_tokenizer_init=True, max_model_len=64)
    assert args.create_model_config().architecture == f"{kind}ForCausalLM"
    assert "torchvision" not in sys.modules


def test_another_package(args: EngineArgs, monkeypatch: pytest.MonkeyPatch) -> None:
    class Registered:
        def load_model_cls(self) -> None:
            raise ModuleNotFoundError("No module named 'timm.models'", name="timm.models")

    monkeypatch.setitem(ModelRegistry.models, "LlavaForConditionalGeneration", Registered())
    with pytest.raises(ValueError, match=r"needs the package timm, which .*: pip install timm\.$"):
        naming_missing_packages(failed)(args)


def test_other_failures_stay_as_they_are(args: EngineArgs) -> None:
    def refuse(_: Any) -> Any:
        raise ValueError("something else")

    with pytest.raises(ValueError, match=r"^something else$"):
        naming_missing_packages(refuse)(args)
    args.hf_overrides = {"architectures": ["LlamaForCausalLM"]}
    with pytest.raises(ValueError, match="failed to be inspected"):
        naming_missing_packages(failed)(args)
