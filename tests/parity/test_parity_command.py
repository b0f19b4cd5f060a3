"""The command line of ``vllm parity``."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

import pytest

from tests.command_line import vllm_command
from tests.engines import MODEL
from vllm.parity import Setting, cli, report
from vllm.parity.setting import PROMPTS, bundled_model
from vllm.utils.argparse_utils import FlexibleArgumentParser

pytestmark = pytest.mark.fast


def run(*words: str) -> None:
    parser = FlexibleArgumentParser()
    command = cli.ParityCommand()
    command.subparser_init(parser.add_subparsers())
    command.cmd(parser.parse_args(["parity", *words]))


def test_it_is_a_command_of_vllm() -> None:
    ended = vllm_command("parity", "--help")
    assert ended.status == 0
    assert "vllm parity compare A B" in ended.out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["compare", "a"], "compare takes two files"),
        (["compare", "a", "b"], "a: No such file or directory"),
        (["one", "two"], "there is one model at a time, not one and two"),
        (["--dtypes", "int8"], "dtype='int8' is none of float32, bfloat16, float16"),
        (["--modes", "fast"], "mode='fast' is none of upstream, hf_compat, exact, determ"),
        (["--max-new-tokens", "0"], "max_new_tokens=0 must be at least 1"),
        (["--generation", "{"], "--generation is no JSON object"),
        (["--generation", "[1]"], "--generation is no JSON object"),
        (["--prompts", "no/such/file"], "--prompts: No such file"),
        (["twin", "a", "--dtypes", "float64"], "dtype='float64' is none of float32"),
        (["twin", "a", "--max-model-len", "0"], "--max-model-len 0 must be at least 1"),
        (["twin", "./no/such"], "./no/such is no folder"),
        (["twin", __file__], "is no folder: give one with a config.json"),
        (["twin", "a", "--html", "b"], "--html is an option of .*, and not of vllm parity twin"),
        (["compare", "a", "b", "--dtypes", "float32"], "--dtypes is an option of"),
        (["a", "--upstream"], r"option of vllm parity twin, and not of vllm parity \[MODEL\]"),
        (["record", "--dtypes", "float32,bfloat16"], "record takes one dtype at a time"),
        (["record", "--side", "torch"], "side='torch' is none of hf, upstream"),
    ],
)
def test_wrong_arguments_are_one_sentence(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="1"):
        run(*words)
    assert re.match(f"vllm parity: .*{sentence}", capsys.readouterr().err)


def test_arguments_reach_the_comparison(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Any] = []

    def compare(setting: Setting, modes: list[str], dtypes: list[str]) -> report.Report:
        asked.extend((setting, modes, dtypes))
        raise ValueError("seen")

    monkeypatch.setattr("vllm.parity.compare_with_hf", compare)
    prompts = tmp_path / "prompts"
    prompts.write_text("one\n\ntwo\n")
    with pytest.raises(SystemExit, match="1"):
        run("model", "--prompts", str(prompts), "--modes", "exact", "--dtypes", "float32,float16",
            "--max-new-tokens", "7", "--generation", '{"top_k": 4}', "--trust-remote-code",
        )  # fmt: skip
    assert capsys.readouterr().err == "vllm parity: seen\n"
    expected = Setting("model", "float32", ("one", "two"), 7, {"top_k": 4}, trust_remote_code=True)
    assert asked == [expected, ["exact"], ["float32", "float16"]]


def test_the_bundled_model_is_the_default() -> None:
    assert bundled_model() == str(MODEL)
    arguments = argparse.Namespace(
        prompts=None, generation="{}", max_new_tokens=3, trust_remote_code=False
    )
    assert cli._setting([], "float32", arguments) == Setting(str(MODEL), "float32", PROMPTS, 3, {})
