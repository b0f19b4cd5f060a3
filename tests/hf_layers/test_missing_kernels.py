"""An engine that ends for want of a kernel says which mode runs its model."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from transformers import AutoModelForCausalLM, MambaConfig

from tests.engines import MODEL
from vllm.engine.arg_utils import EngineArgs
from vllm.hf_layers.missing_kernels import naming_exact_mode, note_on

if TYPE_CHECKING:
    from vllm.config import VllmConfig

MAMBA: dict[str, Any] = {
    "hidden_size": 64, "state_size": 8, "num_hidden_layers": 2, "vocab_size": 512,
}  # fmt: skip
START = """
import sys
from vllm import LLM
if __name__ == "__main__":
    LLM(sys.argv[1], dtype="float32", skip_tokenizer_init=True, kv_cache_memory_bytes=1 << 26)
"""


@pytest.fixture(scope="module")
def mamba(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose selective scan vLLM's build for CPUs has not."""
    folder = tmp_path_factory.mktemp("mamba")
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(MambaConfig(**MAMBA)).save_pretrained(folder)
    return folder


def config_of(folder: Path, **arguments: Any) -> VllmConfig:
    given = {"dtype": "float32", "skip_tokenizer_init": True, "max_model_len": 64, **arguments}
    return EngineArgs(str(folder), **given).create_engine_config()


def test_an_engine_without_flags_names_exact_mode(mamba: Path, tmp_path: Path) -> None:
    script = tmp_path / "start.py"
    script.write_text(START)
    command = [sys.executable, str(script), str(mamba)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode != 0
    said = ended.stdout + ended.stderr
    assert 'Use hf_compat="exact", which runs Transformers\' own MambaFor' in said, said[-3000:]


def test_the_error_keeps_its_type_and_text(mamba: Path) -> None:
    class Core:
        def __init__(self, vllm_config: VllmConfig, executor_class: type, log_stats: bool) -> None:
            raise NotImplementedError("of an operator")

        def step(self) -> None: ...

        def step_with_batch_queue(self) -> None: ...

    decorated: Any = naming_exact_mode(Core)
    config = config_of(mamba)
    with pytest.raises(NotImplementedError, match=r"^of an operator\n") as ended:
        decorated(config, int, log_stats=False)
    assert ended.value.__notes__ == [note_on(config)]


@pytest.mark.parametrize("name", ["step", "step_with_batch_queue"])
def test_the_error_of_a_step_has_the_note(mamba: Path, name: str) -> None:
    class Core:
        def __init__(self, vllm_config: VllmConfig) -> None:
            self.vllm_config = vllm_config

        def step(self) -> None:
            raise AssertionError("of an operator")

        step_with_batch_queue = step

    decorated: Any = naming_exact_mode(Core)
    config = config_of(mamba)
    with pytest.raises(AssertionError, match=r"^of an operator\n") as ended:
        getattr(decorated(config), name)()
    assert ended.value.__notes__ == [note_on(config)]


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        ({}, 'hf_compat="exact",'),
        ({"hf_compat": "rules"}, 'hf_compat="exact",'),
        ({"tensor_parallel_size": 2}, 'hf_compat="exact" without tensor_parallel_size=2,'),
        ({"kv_cache_dtype": "fp8"}, 'hf_compat="exact" without kv_cache_dtype,'),
    ],
    ids=str,
)
def test_exact_mode_is_named_with_what_is_in_its_way(
    mamba: Path, arguments: dict[str, Any], remedy: str
) -> None:
    assert f"Use {remedy} which runs" in (note_on(config_of(mamba, **arguments)) or "")


def test_exact_mode_is_not_named_in_exact_mode(mamba: Path) -> None:
    assert note_on(config_of(mamba, hf_compat="exact")) is None


def test_a_dense_model_has_its_kernels() -> None:
    assert note_on(config_of(MODEL)) is None
