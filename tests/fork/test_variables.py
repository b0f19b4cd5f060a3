"""Environment variables are the defaults of flags that nobody has given, and no others."""

from __future__ import annotations

import base64
from argparse import Namespace
from typing import Any

import pytest

from tests.engines import MODEL
from vllm.bulk.cli import add_arguments
from vllm.bulk.plan import Plan
from vllm.bulk.rows import Survey
from vllm.engine.arg_utils import AsyncEngineArgs, EngineArgs
from vllm.fork.flags.flag_values import SPECS, VARIABLES
from vllm.fork.flags.fork_flags import ForkFlags
from vllm.fork.flags.server_flags import ServerFlags
from vllm.parity.sides import FLAGS as parity_flags
from vllm.platforms import current_platform
from vllm.receipts.audit import engine_arguments
from vllm.utils.argparse_utils import FlexibleArgumentParser


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shell of whoever runs the tests may have some."""
    for variable in VARIABLES.values():
        monkeypatch.delenv(variable, raising=False)


def parse(*arguments: str) -> Namespace:
    parser = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser())
    return parser.parse_args(["--model", str(MODEL), *arguments])


def flags_of_command(*arguments: str) -> ForkFlags:
    return ForkFlags.from_engine_args(AsyncEngineArgs.from_cli_args(parse(*arguments)))


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", True), ("true", True), ("True", True), ("0", False), ("FALSE", False), ("", None),
     ("exact", "exact"), ("strict", "strict")],
)  # fmt: skip
def test_a_variable_has_the_values_of_its_flag(
    text: str, value: bool | str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_HF_COMPAT", text)
    expected = ForkFlags(hf_compat=value or False)
    assert flags_of_command() == expected
    for kind in (EngineArgs, AsyncEngineArgs):
        assert ForkFlags.from_engine_args(kind(str(MODEL))) == expected
    assert parse().hf_compat == value


def test_each_flag_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, spec in SPECS.items():
        for value in (True, False, *spec.modes):
            monkeypatch.setenv(VARIABLES[name], str(value))
            assert getattr(flags_of_command(), name) == value
        monkeypatch.delenv(VARIABLES[name])


@pytest.mark.parametrize(
    ("arguments", "keywords", "value"),
    [
        (("--no-hf-compat",), {"hf_compat": False}, False),
        (("--hf-compat",), {"hf_compat": True}, True),
        (("--hf-compat", "strict"), {"hf_compat": "strict"}, "strict"),
    ],
)
def test_an_argument_wins(
    arguments: tuple[str, ...],
    keywords: dict[str, Any],
    value: bool | str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Over a variable that is wrong, too, which nobody has to read then."""
    for text in ("exact", "exakt"):
        monkeypatch.setenv("VLLM_HF_COMPAT", text)
        assert flags_of_command(*arguments).hf_compat == value
        assert ForkFlags.from_engine_args(EngineArgs(str(MODEL), **keywords)).hf_compat == value


SENTENCES = {
    "VLLM_HF_COMPAT": ("exakt", "'exakt' is not a value of this variable; use one of 1, 0, exact,"),
    "VLLM_SPLIT_QKV": ("exact", "'exact' is not a value of this variable; use one of 1, 0."),
    "VLLM_DETERMINISTIC": ("on", "'on' is not a value of this variable; use one of 1, 0, batch."),
    "VLLM_RECEIPTS": ("8", "'8' is not a value of this variable; use one of 1, 0, 16, 32, 64."),
}


@pytest.mark.parametrize("variable", SENTENCES)
def test_a_wrong_value_is_one_sentence(
    variable: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text, sentence = SENTENCES[variable]
    monkeypatch.setenv(variable, text)
    with pytest.raises(ValueError, match=rf"^{variable}={sentence}"):
        EngineArgs(str(MODEL)).create_engine_config()
    with pytest.raises(SystemExit) as stopped:
        parse()
    assert stopped.value.code == 2
    option = next(name for name in VARIABLES if VARIABLES[name] == variable).replace("_", "-")
    last = capsys.readouterr().err.splitlines()[-1]
    assert f"error: argument --{option}/--no-{option}: {variable}={sentence}" in last


def test_upstream_knows_the_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would warn of one that it does not know, and refuse it where it is told to be strict."""
    for variable in (*VARIABLES.values(), "VLLM_FORK_CPU_ISA", "VLLM_FORK_OTHER_BITS"):
        monkeypatch.setenv(variable, "1")
    current_platform.validate_environ(hard_fail=True)
    monkeypatch.setenv("VLLM_HF_COMPATIBLE", "1")
    with pytest.raises(ValueError, match="VLLM_HF_COMPATIBLE"):
        current_platform.validate_environ(hard_fail=True)


def test_flags_of_the_server_that_belong_to_hf_compat_follow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VLLM_HF_COMPAT", "1")
    args = parse("--max-num-beams", "8", "--no-strict-body")
    flags = ServerFlags.of(args)
    assert (flags.hf_compat, flags.max_num_beams, flags.strict_body) == (True, 8, False)
    assert args.shutdown_timeout == 20
    assert parse("--shutdown-timeout", "3").shutdown_timeout == 3
    assert parse("--no-hf-compat").shutdown_timeout == 0
    # A program that builds the app itself may have no such arguments.
    assert ServerFlags.of(Namespace()).hf_compat is True
    assert ServerFlags.of(Namespace(hf_compat=False)).hf_compat is False


def test_a_run_of_bulk_goes_on_with_the_same_variables_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def plan() -> Plan:
        parser = FlexibleArgumentParser()
        add_arguments(parser)
        args = parser.parse_args(["in.jsonl", "out.jsonl", "--model", str(MODEL)])
        return Plan.of(Survey("", 0), args, parser)

    before = plan()
    monkeypatch.setenv("VLLM_HF_COMPAT", "exact")
    assert plan().flags == {**before.flags, "hf_compat": "exact"}


def test_an_audit_has_the_flags_of_the_receipt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its engine is the receipt's: hf_compat, deterministic and receipts are arguments of it."""
    receipt: Any = {
        "model": {},
        "flags": {},
        "logits": base64.b64encode(b"8 bytes!"),
        "output": [1],
    }
    for variable in VARIABLES.values():
        monkeypatch.setenv(variable, "0")
    monkeypatch.delenv("VLLM_SPLIT_QKV")
    given = engine_arguments(receipt)
    args = EngineArgs(str(MODEL), **{name: given[name] for name in SPECS if name in given})
    assert ForkFlags.from_engine_args(args) == ForkFlags(
        hf_compat=True, deterministic=True, receipts=True
    )


@pytest.mark.parametrize("mode", parity_flags)
def test_an_engine_that_parity_compares_is_that_of_its_mode(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = ForkFlags.from_engine_args(EngineArgs(str(MODEL), **parity_flags[mode]))
    for variable in ("VLLM_HF_COMPAT", "VLLM_DETERMINISTIC", "VLLM_RECEIPTS"):
        for text in ("0", "1"):
            monkeypatch.setenv(variable, text)
            args = EngineArgs(str(MODEL), **parity_flags[mode])
            assert ForkFlags.from_engine_args(args) == expected
