"""Commands of the documentation that are run by other tests, or need what a test has not."""

from __future__ import annotations

from collections.abc import Iterator

INSTALL = "tests/distribution/test_install.py::test_the_compiled_kernels_load"
WHEEL = "tests/distribution/test_install.py::test_the_wheel_installs_and_runs"
REBASE = "tests/distribution/test_rebase.py::test_each_rebased_patch_applies_to_the_next_release"
PATCHES = "tests/distribution/test_patches_cli.py"
DEMO = "tests/docs/test_demo.py::test_the_demo"

LORA = "tests/hf_compat/test_lora.py::test_some_requests_with_the_adapter_and_some_without"
DETERMINISTIC = "tests/deterministic/test_server.py::test_32_clients_at_once_and_one_alone"
RENDERED = "tests/server/test_body_routes.py::test_rendered_requests_keep_the_fields"

ELSEWHERE = {
    "git clone https://github.com/OWNER/REPOSITORY && cd REPOSITORY": "has no address of its own",
    "sudo apt install git make g++ libnuma1 python3-dev python3-venv": (
        "needs a machine with nothing: tools/bare_machine.py"
    ),
    "make dev": INSTALL,
    "make lint": "what continuous integration runs",
    "make test": "what continuous integration runs",
    "make test-fast": "a part of make test",
    "make help": "tests/distribution/test_make.py::test_help_has_a_line_for_each_target",
    "make demo": DEMO,
    "make wheel": WHEEL,
    "pip install -e .": INSTALL,
    "pip install -e '.[ray,datatrove]'": INSTALL,
    "python examples/ray_data.py input.jsonl answers 2": (
        "tests/scale_out/test_ray_data.py::test_two_engines_of_which_one_is_killed_answer_as_one"
    ),
    "python examples/datatrove_pipeline.py input answers 2": (
        "tests/scale_out/test_datatrove.py::"
        "test_two_servers_of_which_one_is_killed_answer_as_one_engine"
    ),
    "python examples/grpo.py": (
        "tests/docs/test_reinforcement.py::test_a_run_that_is_killed_goes_on"
    ),
    "pip install torch==2.13.0 --index-url ...": "is PyTorch's own page's",
    "pip install vllm-0.32.0+cpu.hf2-*.whl": WHEEL,
    "sha256sum -c SHA256SUMS": "is a tool of the system",
    "VLLM_UPSTREAM_WHEEL=/path/to/vllm-0.32.0+cpu-...whl pip install .": (
        "tests/distribution/test_other_wheel.py::test_another_build_of_the_release_is_taken"
    ),
    "python -m distribution.patches check": (
        f"{PATCHES}::test_the_series_applies_to_the_pinned_wheel"
    ),
    "python -m distribution.patches new hooks/fast-start": f"{PATCHES}::test_new_records_the_edits",
    "python -m distribution.patches refresh flags": (
        f"{PATCHES}::test_refresh_writes_one_patch_and_leaves_the_others"
    ),
    "python -m distribution.patches rebase --to 0.33.0 --target cuda": REBASE,
    "python -m tools.digests --write": (
        "tests/structure/test_digests.py::test_the_committed_digests_stay"
    ),
    "python3.12 -m venv build/gpu/image && build/gpu/image/bin/pip install -r "
    "benchmarks/gpu/image.txt": "is 5 GB of downloads, which tools/gpu_rehearsal.py does",
    "build/gpu/image/bin/python -m benchmarks.gpu.pack": (
        "tests/benchmarks/gpu/test_pack.py::test_what_is_unpacked_is_what_was_packed"
    ),
    "benchmarks/gpu/run.sh 1": (
        "tests/benchmarks/gpu/test_run.py::test_a_call_whose_bits_are_all_equal_leads_to_the_second"
    ),
    "benchmarks/gpu/run.sh 2": (
        "tests/benchmarks/gpu/test_run.py::test_a_call_whose_bits_are_all_equal_leads_to_the_second"
    ),
    "vllm serve models/tiny-python-llama --hf-compat --dtype float32 --served-model-name tiny "
    "--enable-lora --max-lora-rank 8 --lora-modules mine=build/docs/adapters/lora": LORA,
    "curl -s localhost:8000/v1/completions -H 'Content-Type: application/json' "
    '-d \'{"model": "mine", "prompt": "def f(", "max_new_tokens": 8}\'': LORA,
    "vllm serve models/tiny-python-llama --hf-compat --dtype bfloat16 --data-parallel-size 2": (
        "tests/scale_out/test_ranks.py::test_two_engines_of_a_server"
    ),
    "vllm serve models/tiny-python-llama --dtype bfloat16 --hf-compat --deterministic "
    "--port 8000": DETERMINISTIC,
    "vllm serve models/tiny-python-llama --dtype bfloat16 --hf-compat --deterministic "
    "--port 8001": DETERMINISTIC,
    "vllm serve models/tiny-python-llama --hf-compat --dtype float32 --served-model-name tiny "
    "--enable-scale-out": RENDERED,
    "curl -s localhost:8000/v1/completions/render -H 'Content-Type: application/json' "
    '-d \'{"model": "tiny", "prompt": "def f(", "max_new_tokens": 8, '
    '"no_repeat_ngram_size": 2}\'': RENDERED,
}
"""Each command, and the test that runs it (``file::function``) or why none can."""


def commands_of(code: str) -> Iterator[str]:
    """Yield the commands of a block of a shell, without comments and in one line each.

    Where lines begin with a prompt, the others are what commands print.
    """
    lines = code.replace("\\\n", " ").splitlines()
    prompted = [line[2:] for line in lines if line.startswith("$ ")]
    for line in prompted or lines:
        command = " ".join(line.partition("  #")[0].split())
        if command and not command.startswith("#"):
            yield command
