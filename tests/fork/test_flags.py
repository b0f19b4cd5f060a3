"""The fork's flags: accepted, checked, shown and carried, or refused in one sentence."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from tests.command_line import vllm_command
from tests.engines import MODEL
from vllm.engine.arg_utils import AsyncEngineArgs, EngineArgs
from vllm.fork.flags.fork_flags import CONFIG_KEY, ForkFlags
from vllm.utils.argparse_utils import FlexibleArgumentParser

pytestmark = pytest.mark.fast


def parse(*arguments: str) -> AsyncEngineArgs:
    parser = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser())
    return AsyncEngineArgs.from_cli_args(parser.parse_args(["--model", str(MODEL), *arguments]))


@pytest.mark.parametrize(
    ("arguments", "value"),
    [((), None), (("--hf-compat",), True), (("--hf_compat",), True),
     (("--hf-compat", "exact"), "exact"), (("--hf-compat", "strict"), "strict"),
     (("--hf-compat", "--no-hf-compat"), False)],
)  # fmt: skip
def test_command_line(arguments: tuple[str, ...], value: bool | str | None) -> None:
    assert parse(*arguments).hf_compat == value


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--split-qkv", "always"), "unrecognized arguments: always"),
        (("--deterministic", "on"), "deterministic='on' is not a value of this flag"),
        (("--hf-compat", "true"), "hf_compat='true' is not a value of this flag"),
        (("--no-hf-compat", "exact"), "--no-hf-compat takes no value"),
        (("--max-num-beams", "8"), "--max-num-beams is about the bodies of --hf-compat: add that"),
        (("--no-strict-body", "--no-hf-compat"), "--no-strict-body is about the bodies of"),
        (("--hf-compatt",), "unrecognized arguments: --hf-compatt (did you mean --hf-compat?)"),
        (("--hf-comapt=exact",), "--hf-comapt=exact (did you mean --hf-compat?)"),
        (("--hfcompat", "exact"), "--hfcompat exact (did you mean --hf-compat?)"),
        (("--deterministc",), "(did you mean --deterministic?)"),
        (("--deterministic-mode",), "unrecognized arguments: --deterministic-mode\n"),
        (("--no_splitt_qkv",), "(did you mean --no-split-qkv?)"),
        (("--reciepts", "32"), "(did you mean --receipts?)"),
        (("--kv-cache-memory-byte-s", "1"), "unrecognized arguments: --kv-cache-memory-byte-s 1\n"),
    ],
)
def test_command_line_refusals(
    arguments: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        parse(*arguments)
    assert stopped.value.code == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("flags", [{}, {"hf_compat": True}, {"hf_compat": "strict"}])
def test_heads_without_kernels_are_refused(flags: dict[str, Any]) -> None:
    """Upstream's engine ends with the first request: "Unsupported CPU attention configuration"."""
    small: Any = {"dtype": "bfloat16", "hf_overrides": {"head_dim": 16}}
    with pytest.raises(ValueError, match=r"no kernels for heads of 16 elements, .* hf_compat="):
        EngineArgs(str(MODEL), model_impl="vllm", **small, **flags).create_engine_config()
    EngineArgs(str(MODEL), **small, hf_compat="exact").create_engine_config()
    if flags:
        own = EngineArgs(str(MODEL), **small, **flags).create_engine_config()
        assert ForkFlags.of(own).hf_compat == "exact", "Transformers' own model attends itself"
    EngineArgs(str(MODEL), **small, deterministic=True).create_engine_config()


def test_carried_to_workers_as_one_object() -> None:
    """What a worker process unpickles holds the flags; the cache key of compiled code differs."""
    config = EngineArgs(str(MODEL), dtype="float32", hf_compat=True).create_engine_config()
    received = pickle.loads(pickle.dumps(config))
    assert ForkFlags.of(received) == ForkFlags(hf_compat=True)
    plain = EngineArgs(str(MODEL), dtype="float32").create_engine_config()
    assert ForkFlags.of(plain) == ForkFlags()
    assert CONFIG_KEY not in plain.additional_config
    assert plain.compute_hash() != config.compute_hash()


@pytest.mark.parametrize(
    ("arguments", "value", "splits"),
    [
        ((), None, False),
        (("--split-qkv",), True, True),
        (("--hf-compat",), None, True),
        (("--hf-compat", "--no-split-qkv"), False, False),
        (("--no-split-qkv",), False, False),
    ],
)
def test_split_qkv_follows_hf_compat_unless_it_is_set(
    arguments: tuple[str, ...], value: bool | None, splits: bool
) -> None:
    args = parse(*arguments)
    assert args.split_qkv is value
    config = args.create_engine_config()
    assert ForkFlags.of(config).splits_projections is splits
    assert (CONFIG_KEY in config.additional_config) is ("--hf-compat" in arguments or splits)


def test_own_additional_config_is_kept() -> None:
    args = EngineArgs(str(MODEL), dtype="float32", hf_compat=True, additional_config={"mine": 1})
    additional = args.create_engine_config().additional_config
    assert additional["mine"] == 1
    assert CONFIG_KEY in additional


def test_v1_runner_is_enforced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
    with_flag = EngineArgs(str(MODEL), dtype="float32", hf_compat=True).create_engine_config()
    assert with_flag.use_v2_model_runner is False


def test_help_shows_a_group() -> None:
    ended = vllm_command("serve", "--help=ParityConfig")
    assert ended.status == 0
    for flag in ("--hf-compat", "--split-qkv", "--deterministic"):
        assert flag in ended.out
    assert "--max-model-len" not in ended.out


def test_a_missing_library_of_the_system_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wheel may have come to a machine that lacks it, where upstream fails without its name."""
    EngineArgs(str(MODEL), dtype="float32").create_engine_config()
    monkeypatch.setattr("vllm.fork.startup.system_libraries.NUMA", "libno-such.so.1")
    with pytest.raises(ValueError, match=r"^libno-such\.so\.1 was not found, .* libnuma1"):
        EngineArgs(str(MODEL), dtype="float32").create_engine_config()


@pytest.mark.parametrize(
    ("arguments", "seconds"),
    [
        ((), 0),
        (("--hf-compat",), 20),
        (("--hf-compat", "--no-hf-compat"), 0),
        (("--hf-compat", "--shutdown-timeout", "0"), 0),
        (("--shutdown-timeout", "0", "--hf-compat"), 0),
        (("--shutdown-timeout", "3"), 3),
    ],
)
def test_a_server_with_hf_compat_drains_unless_it_is_told_otherwise(
    arguments: tuple[str, ...], seconds: int
) -> None:
    assert parse(*arguments).shutdown_timeout == seconds
    assert parse(*arguments).create_engine_config().shutdown_timeout == seconds
