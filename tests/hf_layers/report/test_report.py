"""Which layers have Hugging Face's bits is said, in the log and in Python, or refused."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

from tests.deterministic.states_models import write_model
from tests.engines import MODEL
from tests.loaded_models import LoadModel, engine_config, model_of
from vllm.config import VllmConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.hf_layers.report.report import (
    ParityReport,
    check_layers,
    log_report,
    report_of_model,
)
from vllm.hf_layers.strict import note_settings, settings_of


@pytest.fixture
def made(load_model: LoadModel) -> Any:
    """Makes a narrow model; returns it and its engine's configuration."""

    def make(shape: str, **arguments: Any) -> tuple[nn.Module, VllmConfig]:
        folder = load_model(shape)[1]
        config = engine_config(folder, **{"max_model_len": 128} | arguments)
        return model_of(config), config

    return make


def of_vllm(report: ParityReport) -> dict[str, str]:
    return {row.kind: row.reason for row in report.rows if not row.has_hf_bits}


@pytest.mark.parametrize("shape", ["tinyllama-1.1b", "opt-125m", "bloom-560m"])
def test_all_layers_of_models_whose_bits_are_promised(made: Any, shape: str) -> None:
    report = report_of_model(*made(shape, hf_compat="strict"))
    assert report.has_hf_bits
    counts = {row.kind: row.count for row in report.rows}
    assert counts["Attention"] == counts["QKVParallelLinear"] == 1
    assert counts["RowParallelLinear"] == 2
    assert ("RMSNorm" in counts) == (shape == "tinyllama-1.1b")


def test_what_keeps_vllms_kernels_is_named_and_refused(made: Any) -> None:
    model, config = made("deepseek-v2-lite", hf_compat=True, model_impl="vllm")
    report = report_of_model(model, config)
    assert not report.has_hf_bits
    assert re.fullmatch(  # by the instructions of the CPU
        r"attention of another kind \((CPU|AMX)MLAImpl\)", of_vllm(report).pop("MLAAttention")
    )
    assert set(of_vllm(report)) == {"MLAAttention"}
    assert "MLAAttention                        1  vLLM          attention of" in str(report)
    reason = (
        r"DeepseekV2ForCausalLM, since its latent attention \(MLA\) keeps vLLM's kernel: use hf"
    )
    with pytest.raises(ValueError, match=f'^hf_compat="strict" does not go with {reason}'):
        # Known before the model is made.
        made("deepseek-v2-lite", hf_compat="strict", model_impl="vllm")


def test_layers_with_states_keep_vllms_kernels(one_rank: None, tmp_path: Path) -> None:
    write_model("mamba2", tmp_path)
    arguments: Any = {"hf_compat": True, "model_impl": "vllm", "skip_tokenizer_init": True}
    config = engine_config(tmp_path, max_model_len=128, **arguments)
    report = report_of_model(model_of(config), config)
    assert of_vllm(report)["MambaMixer2"] == "states are computed by vLLM's kernel"


def test_layers_that_nobody_expected_are_refused(made: Any) -> None:
    """By the worker, before weights are loaded."""
    plain, _ = made("tinyllama-1.1b")
    model, config = made("tinyllama-1.1b", hf_compat="strict")
    check_layers(model, config)
    model.model.layers[0].mlp = plain.model.layers[0].mlp
    with pytest.raises(ValueError, match=r"^hf_compat=.strict. refuses LlamaFor") as raised:
        check_layers(model, config)
    assert str(raised.value) == (
        'hf_compat="strict" refuses LlamaForCausalLM, of which these layers keep vLLM\'s bits: 1 '
        "MergedColumnParallelLinear (vLLM's kernel (UnquantizedLinearMethod)), 1 RowParallelLinear "
        "(vLLM's kernel (UnquantizedLinearMethod)), 1 SiluAndMul (vLLM's kernel, for which Hugging "
        "Face's operations are not known here): use hf_compat=\"exact\", which runs Transformers' "
        "own model, or hf_compat=True, which lets them."
    )
    with pytest.raises(ValueError, match=r" and \d more kinds: use hf_compat="):
        check_layers(plain, config)


def test_upstreams_own_layer_is_found(made: Any) -> None:
    """A report that looked at the flag alone would call every layer Hugging Face's."""
    model, config = made("tinyllama-1.1b", hf_compat=True)
    plain, _ = made("tinyllama-1.1b")
    assert report_of_model(model, config).has_hf_bits
    kinds = set(of_vllm(report_of_model(plain, config)))
    assert {"Attention", "RMSNorm", "SiluAndMul", "RotaryEmbedding", "RowParallelLinear"} <= kinds


def test_layers_in_float32_are_vllms(made: Any) -> None:
    model, config = made("opt-125m", hf_compat=True, dtype="float32")
    report = report_of_model(model, config)
    reason = "float32: vLLM's kernel rounds otherwise, so one answer in 1,000 has another token"
    assert of_vllm(report)["RowParallelLinear"].startswith(reason)
    assert report.settings[0].startswith("dtype float32: layers are vLLM's")


def test_a_cache_of_few_bits_has_other_tokens(made: Any) -> None:
    model, config = made("opt-125m", hf_compat=True, dtype="float32", kv_cache_dtype="fp8")
    report = report_of_model(model, config)
    assert "other tokens" in of_vllm(report)["Attention"]
    assert report.settings[0].startswith("kv_cache_dtype='fp8")


def test_on_gpus_attention_and_products_are_vllms(
    made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, config = made("opt-125m", hf_compat="strict")
    plain, _ = made("opt-125m")
    gpu = SimpleNamespace(is_cpu=lambda: False, device_name="NVIDIA H100")
    monkeypatch.setattr("vllm.hf_layers.report.layers.current_platform", gpu)
    monkeypatch.setattr("vllm.hf_layers.inexact_settings.current_platform", gpu)
    reasons = of_vllm(report_of_model(plain, config))
    assert reasons["Attention"] == "attention on GPUs is vLLM's kernel"
    assert reasons["RowParallelLinear"] == "products on GPUs are vLLM's kernel"
    assert "LayerNorm" not in of_vllm(report_of_model(model, config))
    with pytest.raises(ValueError, match=r"does not go with NVIDIA H100, since .*: run on a CPU, "):
        note_settings(config)


STRICT: list[tuple[dict[str, Any], str]] = [
    ({"dtype": "float32"}, 'dtype float32, since .*: use dtype="bfloat16" or "float16", or use'),
    ({"split_qkv": False}, "split_qkv=False, since fused projections"),
    ({"tensor_parallel_size": 2}, "tensor_parallel_size=2, since sums over several parts"),
    ({"pipeline_parallel_size": 2}, "pipeline_parallel_size=2, since its ranks have vLLM's number"),
    ({"enable_lora": True}, "enable_lora=True, since adapters"),
    ({"enable_prefix_caching": True}, "enable_prefix_caching=True, since a part of a prompt"),
    ({"max_num_batched_tokens": 64}, r".*batched_tokens=64\), since .*: use max_num_batched_t"),
    ({"enable_chunked_prefill": True}, "enable_chunked_prefill=True .*, since .*: leave it out"),
    ({"deterministic": True}, "deterministic=True, since layers have the bits of"),
    ({"kv_cache_dtype": "fp8"}, "kv_cache_dtype='fp8.*', since keys and values are rounded to it"),
]


@pytest.mark.parametrize(("arguments", "sentence"), STRICT, ids=[str(a) for a, _ in STRICT])
def test_settings_that_cost_bits(arguments: dict[str, Any], sentence: str) -> None:
    settings = {"dtype": "bfloat16", "max_model_len": 128, **arguments}
    config = EngineArgs(str(MODEL), hf_compat=True, **settings).create_engine_config()
    assert len(settings_of(config)) == 1
    with pytest.raises(ValueError, match=f'^hf_compat="strict" does not go with {sentence}'):
        EngineArgs(str(MODEL), hf_compat="strict", **settings).create_engine_config()


def test_threads_that_are_chosen_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0")
    with pytest.raises(
        ValueError, match=r"VLLM_CPU_OMP_THREADS_BIND=0, since .*: unset it, or use"
    ):
        EngineArgs(str(MODEL), dtype="bfloat16", hf_compat="strict").create_engine_config()


def test_the_table_is_logged_and_nothing_without_the_flag(
    made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr("vllm.hf_layers.report.report.logger.info", lambda *a: said.append(a[-1]))
    for arguments in ({}, {"hf_compat": True}):
        model, config = made("opt-125m", **arguments)
        runner: Any = SimpleNamespace(vllm_config=config, get_model=lambda one=model: one)
        log_report(runner)
        assert settings_of(config) == ()
        assert list(map(str, said)) == [str(report_of_model(model, config))] * len(arguments)
