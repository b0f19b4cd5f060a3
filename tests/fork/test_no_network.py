"""A machine with a loopback interface and nothing else, such as one that is lent without a network.

vLLM has no address of such a machine but 0.0.0.0, and its name belongs to none of its interfaces.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.engines import MODEL, ROOT

pytestmark = pytest.mark.long

ALONE = ["unshare", "--user", "--map-root-user", "--net", "--uts", "sh", "-c"]

ENGINE = """
from vllm import LLM, SamplingParams
if __name__ == "__main__":
    llm = LLM({model!r}, dtype="bfloat16", max_model_len=64, enforce_eager=True,
              kv_cache_memory_bytes=1 << 24, **{arguments!r})
    params = SamplingParams(max_tokens=4, temperature=0)
    output = llm.generate({{"prompt_token_ids": [5, 6, 7]}}, params, use_tqdm=False)[0]
    print("tokens", output.outputs[0].token_ids)
"""

RENDEZVOUS = """
import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import ensure_model_parallel_initialized, init_distributed_environment
from vllm.utils.network_utils import get_distributed_init_method, get_ip, get_open_port
with set_current_vllm_config(VllmConfig()):
    place = get_distributed_init_method(get_ip(), get_open_port())
    assert place.startswith("tcp://0.0.0.0:"), place
    init_distributed_environment(1, 0, place, 0, "gloo")
    ensure_model_parallel_initialized(1, 1)
    summed = torch.ones(2)
    torch.distributed.all_reduce(summed)
    print("sum", summed.tolist())
"""


def without_network(code: str, path: Path) -> str:
    """Run a script in a network and under a host name of its own; return what it prints."""
    path.write_text(code)
    python = shlex.join([sys.executable, str(path)])
    script = f"hostname nowhere && ip link set lo up && exec {python}"
    try:
        permitted = subprocess.run([*ALONE, "true"], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.fail("this test needs unshare, of util-linux")
    if permitted.returncode:
        pytest.fail(f"this test needs a network namespace of its own: {permitted.stderr.strip()}")
    done = subprocess.run(
        [*ALONE, script], cwd=ROOT, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        {"hf_compat": True},
        {"hf_compat": "exact", "distributed_executor_backend": "mp"},
        {"hf_compat": True, "tensor_parallel_size": 2},
    ],
    ids=["one process", "a process for the model", "two ranks"],
)
def test_an_engine_answers(arguments: dict[str, Any], tmp_path: Path) -> None:
    code = ENGINE.format(model=str(MODEL), arguments=arguments)
    assert "tokens [85, 9, 446, " in without_network(code, tmp_path / "engine.py")


def test_ranks_meet_at_the_address_that_vllm_takes(tmp_path: Path) -> None:
    assert "sum [1.0, 1.0]" in without_network(RENDEZVOUS, tmp_path / "rendezvous.py")
