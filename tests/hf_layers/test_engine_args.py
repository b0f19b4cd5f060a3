"""The dtype, the execution mode and the tensor parallel sizes that the flags ask for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    LlamaConfig,
    MistralConfig,
    OlmoeConfig,
    Phi3Config,
    PretrainedConfig,
    Qwen3Config,
)

from tests.engines import MODEL
from tests.longrope import use_longrope
from vllm.config import CompilationMode, VllmConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.fork.flags.fork_flags import ForkFlags
from vllm.hf_layers.engine import engine_args as hf_layers
from vllm.hf_layers.engine.dtype import hf_dtype
from vllm.hf_layers.engine.tensor_parallel import working_sizes
from vllm.hooks.engine_args import prepare_engine_args

SIZES = {
    "hidden_size": 96,
    "num_attention_heads": 6,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "vocab_size": 128,
}


def write_model(folder: Path, dtype: torch.dtype, *, in_config: bool) -> Path:
    """A Llama of one dtype that its configuration names, or only its weights have."""
    config = LlamaConfig(**SIZES | {"num_attention_heads": 4})
    AutoModelForCausalLM.from_config(config).to(dtype).save_pretrained(folder)
    fields = json.loads((folder / "config.json").read_text())
    fields.pop("dtype")
    if in_config:
        fields["dtype"] = str(dtype).removeprefix("torch.")
    (folder / "config.json").write_text(json.dumps(fields))
    return folder


def engine_config(folder: Path, **arguments: Any) -> VllmConfig:
    arguments = {"max_model_len": 64} | arguments
    return EngineArgs(str(folder), skip_tokenizer_init=True, **arguments).create_engine_config()


@pytest.mark.some(3)
@pytest.mark.parametrize("in_config", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_auto_is_transformers_dtype(tmp_path: Path, dtype: torch.dtype, in_config: bool) -> None:
    folder = write_model(tmp_path, dtype, in_config=in_config)
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype="auto").dtype
    assert theirs == dtype
    assert engine_config(folder, hf_compat=True).model_config.dtype == theirs


def test_without_the_flag_upstream_decides(tmp_path: Path) -> None:
    folder = write_model(tmp_path, torch.float32, in_config=True)
    assert engine_config(folder).model_config.dtype == torch.bfloat16


def test_a_dtype_that_is_asked_for_is_kept(tmp_path: Path) -> None:
    folder = write_model(tmp_path, torch.float32, in_config=True)
    config = engine_config(folder, hf_compat=True, dtype="bfloat16")
    assert config.model_config.dtype == torch.bfloat16


def test_first_shard_decides(tmp_path: Path) -> None:
    for shard, dtype in (("b", torch.float32), ("a", torch.float16)):
        tensors = {"n": torch.zeros(1, dtype=torch.int64), "w": torch.zeros(1, dtype=dtype)}
        save_file(tensors, tmp_path / f"{shard}.safetensors")
    index = {"metadata": {}, "weight_map": {"x": "b.safetensors", "w": "a.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert hf_dtype(str(tmp_path), None, PretrainedConfig()) == "float16"


def test_no_checkpoint_leaves_it_to_upstream(tmp_path: Path) -> None:
    assert hf_dtype(str(tmp_path), None, PretrainedConfig()) is None


@pytest.fixture
def gemma(tmp_path: Path) -> Path:
    """The folder of a configuration in float16, which vLLM refuses for this architecture."""
    config = Gemma2Config(**SIZES, architectures=["Gemma2ForCausalLM"], dtype="float16")
    config.save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize("mode", [True, "exact"])
def test_gemma_has_float16_as_in_transformers(gemma: Path, mode: bool | str) -> None:
    assert engine_config(gemma, hf_compat=mode).model_config.dtype == torch.float16
    with pytest.raises(ValueError, match="'gemma2' does not support float16"):
        engine_config(gemma, dtype="float16")  # upstream's rule again, in the same process


def test_gemma_has_no_float16_in_deterministic_mode(gemma: Path) -> None:
    with pytest.raises(ValueError, match="'gemma2' does not support float16"):
        engine_config(gemma, hf_compat=True, deterministic=True)


@pytest.fixture
def long_phi3(tmp_path: Path) -> Path:
    """The folder of a configuration with LongRoPE, trained with 64 tokens and then with 256."""
    config = Phi3Config(
        **SIZES | {"num_attention_heads": 3},
        architectures=["Phi3ForCausalLM"],
        dtype="bfloat16",
        pad_token_id=0,
    )
    use_longrope(config, trained=64)
    config.save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.some(3)
@pytest.mark.parametrize(
    ("given", "flags", "longest"),
    [
        (None, {"hf_compat": True}, 64),
        (-1, {"hf_compat": True}, 64),
        (48, {"hf_compat": True}, 48),
        (256, {"hf_compat": "exact"}, 256),
        (256, {}, 256),
    ],
)
def test_texts_have_the_factors_of_longrope_that_transformers_gives_them(
    long_phi3: Path, given: int | None, flags: dict[str, Any], longest: int
) -> None:
    config = engine_config(long_phi3, max_model_len=given, **flags)
    assert config.model_config.max_model_len == longest


@pytest.mark.parametrize("deterministic", [False, True])
def test_longer_texts_with_longrope_are_refused(long_phi3: Path, deterministic: bool) -> None:
    with pytest.raises(ValueError, match=r"use max_model_len=64, or hf_compat=\"exact\"\.$"):
        engine_config(long_phi3, max_model_len=65, hf_compat=True, deterministic=deterministic)


@pytest.mark.parametrize(
    "flags", [{"hf_compat": True}, {"hf_compat": "strict"}, {"deterministic": True}]
)
@pytest.mark.parametrize("kind", [Qwen3Config, OlmoeConfig])
@pytest.mark.some(2)
def test_a_bias_that_vllm_leaves_out_is_refused(
    kind: Any, flags: dict[str, Any], tmp_path: Path
) -> None:
    sizes = SIZES | {"num_attention_heads": 4, "hidden_size": 128}
    config = kind(**sizes, attention_bias=True)
    config.architectures = [f"{kind.__name__.removesuffix('Config')}ForCausalLM"]
    config.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="self_attn on, because of attention_bias=True"):
        engine_config(tmp_path, dtype="bfloat16", model_impl="vllm", **flags)


def test_a_bias_that_vllm_leaves_out_is_transformers_own_in_exact_mode(tmp_path: Path) -> None:
    config = Qwen3Config(
        **SIZES | {"num_attention_heads": 4},
        attention_bias=True,
        architectures=["Qwen3ForCausalLM"],
        dtype="bfloat16",
    )
    config.save_pretrained(tmp_path)
    assert engine_config(tmp_path, hf_compat="exact").model_config.dtype == torch.bfloat16


@pytest.mark.parametrize("mode", [True, "exact"])
def test_a_window_of_one_token_is_refused(mode: bool | str, tmp_path: Path) -> None:
    config = MistralConfig(**SIZES | {"num_attention_heads": 4}, sliding_window=1)
    config.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"hf_compat=.* does not go with sliding_window=1"):
        engine_config(tmp_path, hf_compat=mode, dtype="bfloat16")


@pytest.mark.parametrize(
    ("flags", "eager"),
    [({}, False), ({"hf_compat": True}, True), ({"hf_compat": True, "dtype": "float32"}, False)],
)
def test_compiled_code_is_not_used_on_cpu(
    tmp_path: Path, flags: dict[str, Any], eager: bool
) -> None:
    folder = write_model(tmp_path, torch.bfloat16, in_config=True)
    assert engine_config(folder, **flags).model_config.enforce_eager is eager


@pytest.mark.parametrize(
    ("given", "chunks", "caches"),
    [
        ({}, False, False),
        ({"dtype": "float32"}, True, True),
        ({"enable_chunked_prefill": True}, True, False),
        ({"enable_prefix_caching": True}, False, True),
        ({"max_num_batched_tokens": 64}, False, False),
        ({"max_num_batched_tokens": 48}, True, False),
    ],
)
def test_prompts_are_whole_in_16_bits(
    tmp_path: Path, given: dict[str, Any], chunks: bool, caches: bool
) -> None:
    folder = write_model(tmp_path, torch.bfloat16, in_config=True)
    config = engine_config(folder, hf_compat=True, **given)
    assert config.scheduler_config.enable_chunked_prefill is chunks
    assert config.cache_config.enable_prefix_caching is caches


@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "sizes"),
    [(8, 2, [1, 2, 4, 8]), (6, 4, [1, 2]), (9, 3, [1, 3, 9]), (12, 12, [1, 2, 3, 4, 6, 12]),
     (71, 1, [1, 71])],
)  # fmt: skip
def test_working_sizes(num_heads: int, num_kv_heads: int, sizes: list[int]) -> None:
    assert working_sizes(num_heads, num_kv_heads) == sizes


def test_heads_that_do_not_divide_are_refused_with_what_works(tmp_path: Path) -> None:
    LlamaConfig(**SIZES, architectures=["LlamaForCausalLM"]).save_pretrained(tmp_path)
    with pytest.raises(
        ValueError, match="6 attention heads and 4 key-value heads: use one of 1, 2"
    ):
        engine_config(tmp_path, split_qkv=True, tensor_parallel_size=4)


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        ({"tensor_parallel_size": 2}, "tensor_parallel_size=2"),
        ({"pipeline_parallel_size": 2}, "pipeline_parallel_size=2"),
        ({"distributed_executor_backend": "ray"}, "distributed_executor_backend='ray'"),
        ({"distributed_executor_backend": "uni"}, None),
    ],
)
def test_other_threads_than_pytorchs_are_said(
    monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any], cause: str | None
) -> None:
    said: list[str] = []
    warn = "vllm.hf_layers.engine.engine_args.logger.warning"
    monkeypatch.setattr(warn, lambda text, *values: said.append(text % values))
    for dtype in ("bfloat16", "float32"):
        args = EngineArgs(str(MODEL), dtype=dtype, hf_compat=True, **arguments)
        prepare_engine_args(args, ForkFlags(hf_compat=True))
        prepare_engine_args(args, ForkFlags(hf_compat=True))  # arguments may be prepared already
    expected = f"hf_compat: with {cause} workers have vLLM's number of threads and not PyTorch's, "
    assert [text.startswith(expected) for text in said if "threads" in text] == [True, True] * (
        cause is not None
    )


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(
    ("flags", "is_said"),
    [
        ({"hf_compat": True}, True),
        ({"hf_compat": True, "deterministic": True}, False),
        ({}, False),
    ],
)
def test_sums_of_parts_are_said(
    dtype: str, flags: dict[str, Any], is_said: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    warn = "vllm.hf_layers.engine.engine_args.logger.warning"
    monkeypatch.setattr(warn, lambda text, *values: said.append(text % values))
    hf_layers.prepare_engine_args(
        EngineArgs(str(MODEL), dtype=dtype, tensor_parallel_size=2), ForkFlags(**flags)
    )
    expected = "hf_compat: with tensor_parallel_size=2 ranks add their parts of a product, which "
    assert [text.startswith(expected) for text in said[:1]] == [True] * is_said


@pytest.mark.parametrize("flags", [{"hf_compat": True}, {"deterministic": True}], ids=str)
def test_a_compilation_config_in_each_form(flags: dict[str, Any]) -> None:
    for given in (3, None, {"mode": 3}):
        args = EngineArgs(str(MODEL), dtype="bfloat16", compilation_config=given, **flags)
        assert args.create_engine_config().compilation_config.mode == CompilationMode.NONE  # a CPU
    for wrong in (7, "3", True):
        args = EngineArgs(str(MODEL), dtype="bfloat16", compilation_config=wrong, **flags)
        with pytest.raises(ValueError, match=f"^compilation_config={wrong!r} is no configuration"):
            args.create_engine_config()
