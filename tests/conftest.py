"""What all tests share: the bundled model, in Transformers and in an engine with hf_compat."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests.durations import Durations, longest_first
from tests.engines import MODEL, bundled_engine
from tests.sizes import IS_LONG

# Before anything imports Transformers or vLLM: nothing is downloaded, nothing is reported.
os.environ.update(HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", VLLM_LOGGING_LEVEL="ERROR")
os.environ["TOKENIZERS_PARALLELISM"] = "false"
# An engine is three processes. Without bytecode each compiles all of PyTorch, Transformers and vLLM
# again, which takes longer than everything else that it does.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# How fast a machine is, or how busy, is no property of the code.
settings.register_profile(
    "any-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any-machine")

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from vllm import LLM


def pytest_configure(config: pytest.Config) -> None:
    """Keep durations, in the process that others report to."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        config.pluginmanager.register(Durations())


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave to the long run what is marked as long, and most cases of what is marked as `some`."""
    left = set() if IS_LONG else {*filter(is_long, items), *most_cases(items)}
    config.hook.pytest_deselected(items=[item for item in items if item in left])
    items[:] = [item for item in items if item not in left]
    longest_first(items)


def pytest_collection_finish() -> None:
    """Leave what has been imported out of Python's search for garbage, a twelfth of all time."""
    gc.freeze()


def pytest_unconfigure() -> None:
    """Let it go at the end, or nanobind reports it as leaked."""
    gc.unfreeze()


def is_long(item: pytest.Item) -> bool:
    return item.get_closest_marker("long") is not None


def most_cases(items: list[pytest.Item]) -> Iterator[pytest.Item]:
    """Yield all but as many cases of a test as its mark says: the first, the last, some between."""
    tests: dict[tuple[str, int], list[pytest.Item]] = {}
    for item in items:
        mark = item.get_closest_marker("some")
        if mark is not None and not is_long(item):
            tests.setdefault((item.nodeid.partition("[")[0], *mark.args), []).append(item)
    for (_, count), cases in tests.items():
        kept = {round(i * (len(cases) - 1) / max(count - 1, 1)) for i in range(count)}
        yield from (item for i, item in enumerate(cases) if i not in kept)


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerBase:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(MODEL)


@pytest.fixture(scope="session")
def prompts(tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    """32 prompts of the bundled model, of which every fourth is long."""
    from tests.reference import prompt_ids

    return prompt_ids(tokenizer, 32)


@pytest.fixture(scope="session")
def hf_model() -> PreTrainedModel:
    """The bundled model in Transformers, float32, as the engine below runs it."""
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()


@pytest.fixture(scope="session")
def engine() -> Iterator[LLM]:
    with bundled_engine() as llm:
        yield llm


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all processes of a run share."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


@pytest.fixture(scope="session")
def emulated_library(shared_folder: Path) -> Path:
    """The CUDA ops for tensors on the CPU, loaded; compiling them takes a minute, once for all
    processes of a run."""
    from filelock import FileLock

    from tests.emulated_gpu.launches import load
    from tests.emulated_gpu.library import compiled_emulated_ops

    folder = shared_folder / "emulated_ops"
    folder.mkdir(exist_ok=True)
    with FileLock(folder / "lock"):
        library = compiled_emulated_ops(folder)
    load(library)
    return library


@pytest.fixture(scope="session")
def one_rank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A tensor parallel group of this process alone, which linear layers need."""
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.distributed import (
        destroy_distributed_environment,
        destroy_model_parallel,
        init_distributed_environment,
        initialize_model_parallel,
    )

    store = tmp_path_factory.mktemp("rank") / "store"
    with set_current_vllm_config(VllmConfig()):
        init_distributed_environment(1, 0, f"file://{store}", 0, "gloo")
        initialize_model_parallel(1, 1)
    yield
    destroy_model_parallel()
    destroy_distributed_environment()
