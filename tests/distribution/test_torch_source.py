"""Where torch comes from, on a machine whose pip knows nothing but one index.

One index on the loopback interface stands for PyPI, whose torch has no label, and one for
PyTorch's index of builds for CPUs. pip, the installation and the hooks between them are real; the
packages are small.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from distribution.errors import DistributionError
from distribution.frontend import Frontend, read_command_line
from distribution.pins import Pin, load_pin
from distribution.torch_source import TorchSource, find_torch, load_source
from tests.distribution.package_index import Index, add_torch, serving

TORCH = "2.0"
CPU_BUILD = f"{TORCH}+cpu"
PIP = Frontend((), is_pip_alone=True)


@pytest.fixture
def pin(plain_machine: None, repository: Path) -> Pin:
    return load_pin("cpu", repository)


# --- the decision --------------------------------------------------------------------------------
@pytest.mark.some(2)
@pytest.mark.parametrize("behaviour", ["answers", "slow"])
@pytest.mark.parametrize("at_pypi", [True, False], ids=["PyPI has it", "PyPI has none"])
def test_pytorchs_index_comes_before_pypi(
    pin: Pin, pypi: Index, pytorch: Index, behaviour: str, at_pypi: bool
) -> None:
    if at_pypi:
        add_torch(pypi.folder, TORCH)
    wheel = add_torch(pytorch.folder, CPU_BUILD)
    pytorch.behaviour = behaviour
    source = find_torch(pin, PIP)
    address = re.fullmatch(r"torch @ (http://127\.0\.0\.1:\d+/files/.*)#sha256=\w{64}",
                           source.requirement)  # fmt: skip
    assert address
    assert address[1].endswith(wheel.name.replace("+", "%2B"))
    assert not source.is_cuda_build
    assert set(pytorch.asked) == {"torch"}  # nothing else is looked for there


@pytest.mark.some(2)
@pytest.mark.parametrize("behaviour", ["absent", "refuses", "hangs", "closed"])
def test_else_pypis_build_serves_and_its_size_is_said(
    pin: Pin,
    pypi: Index,
    pytorch: Index,
    behaviour: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("distribution.torch_source.PATIENCE", ("--timeout", "2", "--retries", "0"))
    add_torch(pypi.folder, TORCH)
    add_torch(pytorch.folder, CPU_BUILD)
    if behaviour == "closed":
        pytorch.close()
    pytorch.behaviour = behaviour
    assert find_torch(pin, PIP) == TorchSource(f"torch=={TORCH}", (), is_cuda_build=True)
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"vllm: note: torch {TORCH} is PyPI's build for CUDA")
    assert re.search(r"[\d.]+ GB to download and \d GB on disk", line)
    assert pytorch.url in line
    assert "VLLM_PYTORCH_INDEX_URL" in line


@pytest.mark.some(2)
@pytest.mark.parametrize("behaviour", ["answers", "absent", "refuses", "closed"])
def test_if_nothing_is_there_one_sentence_says_both_ways_out(
    pin: Pin, pytorch: Index, behaviour: str
) -> None:
    pytorch.behaviour = behaviour
    if behaviour == "closed":
        pytorch.close()
    with pytest.raises(DistributionError) as refused:
        find_torch(pin, PIP)
    sentence = str(refused.value)
    assert sentence.startswith(f"No torch {TORCH} was found for this Python")
    assert pytorch.url in sentence
    assert "--extra-index-url, --find-links or VLLM_PYTORCH_INDEX_URL" in sentence
    assert "or install it into this environment first" in sentence
    assert "\n" not in sentence


def test_files_of_requirements_may_know_more_than_can_be_seen(pin: Pin) -> None:
    plain = TorchSource(f"torch=={TORCH}", (), is_cuda_build=True)
    assert find_torch(pin, Frontend((), is_pip_alone=False)) == plain


@pytest.mark.parametrize("label", ["cpu", "cu130"])
def test_what_pip_knows_comes_first(
    pin: Pin,
    pypi: Index,
    pytorch: Index,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    label: str,
) -> None:
    add_torch(pypi.folder, TORCH)
    add_torch(pytorch.folder, CPU_BUILD)
    add_torch(tmp_path / "known", f"{TORCH}+{label}")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "known"))
    source = find_torch(pin, PIP)
    wanted = CPU_BUILD if label == "cpu" else TORCH
    assert source == TorchSource(f"torch=={wanted}", (), is_cuda_build=label != "cpu")
    assert not pytorch.asked


def test_of_several_known_builds_it_is_the_one_for_cpus(
    pin: Pin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for label in ("cpu", "cu130", "xpu"):
        add_torch(tmp_path / "known", f"{TORCH}+{label}")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "known"))
    assert find_torch(pin, PIP) == TorchSource(f"torch=={CPU_BUILD}")


def test_a_mirror_keeps_its_login_to_itself(
    pin: Pin,
    pypi: Index,
    pytorch: Index,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    add_torch(pypi.folder, TORCH)
    mirror = pytorch.url.replace("http://", "http://user:secret@")
    monkeypatch.setenv("VLLM_PYTORCH_INDEX_URL", mirror)
    find_torch(pin, PIP)
    assert pytorch.url in capsys.readouterr().out  # without it
    add_torch(pytorch.folder, CPU_BUILD)
    assert find_torch(pin, PIP).requirement.startswith("torch @ http://user:secret@127.0.0.1:")


def test_constraints_of_another_folder_are_found_and_their_reason_is_said(
    pin: Pin, pypi: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_torch(pypi.folder, TORCH)
    (tmp_path / "c.txt").write_text("torch<2.0\n")
    monkeypatch.setattr("distribution.pip.calling_folder", lambda: tmp_path)
    monkeypatch.setenv("PIP_CONSTRAINT", "c.txt")
    with pytest.raises(
        DistributionError, match=r"neither by pip \(Cannot install torch==2\.0 because"
    ):
        find_torch(pin, PIP)


@pytest.mark.parametrize("option", ["--find-links", "--extra-index-url"])
def test_what_pip_was_told_comes_first(
    pin: Pin, pypi: Index, pytorch: Index, tmp_path: Path, option: str
) -> None:
    add_torch(pypi.folder, TORCH)
    add_torch(pytorch.folder, CPU_BUILD)
    with serving(tmp_path / "told") as told:
        add_torch(told.folder, CPU_BUILD)
        options = (option, told.url if "index" in option else str(told.folder))
        source = find_torch(pin, Frontend(options, is_pip_alone=True))
    assert source == TorchSource(f"torch=={CPU_BUILD}", options)
    assert not pytorch.asked


def test_an_address_that_is_none_is_refused(pin: Pin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_PYTORCH_INDEX_URL", "nonsense")
    with pytest.raises(DistributionError, match=r"^VLLM_PYTORCH_INDEX_URL=nonsense is not the add"):
        find_torch(pin, PIP)


def test_no_index_means_none(
    pin: Pin, pypi: Index, pytorch: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    for index in (pypi, pytorch):
        add_torch(index.folder, CPU_BUILD)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(DistributionError, match=r"^No torch 2\.0 was found"):
        find_torch(pin, PIP)
    assert not pypi.asked + pytorch.asked


def test_a_build_for_cuda_takes_what_pip_finds(pin: Pin, pytorch: Index) -> None:
    source = find_torch(replace(pin, target="cuda", torch_index=None), PIP)
    assert source.requirement == f"torch=={TORCH}"
    assert not pytorch.asked


def test_what_a_user_set_for_the_installation_is_not_for_the_look_up(
    pin: Pin, pytorch: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_torch(pytorch.folder, CPU_BUILD)
    monkeypatch.setenv("PIP_TARGET", str(tmp_path / "target"))
    monkeypatch.setenv("PIP_REPORT", str(tmp_path / "report"))
    monkeypatch.setenv("PIP_VERBOSE", "3")
    assert find_torch(pin, PIP).requirement.startswith("torch @ http")
    assert not (tmp_path / "report").exists()


# --- the command line of pip ---------------------------------------------------------------------
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("python -m pip install -e .", Frontend((), True)),
        ("/v/bin/python /v/bin/pip3.11 install .", Frontend((), True)),
        ("pip install -i http://a -e .", Frontend(("--index-url", "http://a"), True)),
        ("pip install --index-url=http://a --extra-index-url http://b .",
         Frontend(("--index-url", "http://a", "--extra-index-url", "http://b"), True)),
        ("pip install --no-index -f links .",
         Frontend(("--no-index", "--find-links", "HERE/links"), True)),
        ("pip install --find-links absent .", Frontend(("--find-links", "absent"), True)),
        ("pip install -r requirements.txt .", Frontend((), False)),
        ("pip install -Ur requirements.txt .", Frontend((), False)),
        ("pip install -qi http://a --find links .",
         Frontend(("--index-url", "http://a", "--find-links", "HERE/links"), True)),
        ("python -I -u -m pip install --isolated .", Frontend(("--isolated",), True)),
        ("uv pip install -i http://a .", Frontend((), False)),
        ("python setup.py -i http://a", Frontend((), False)),
        ("sed -i s/a/b/ file", Frontend((), False)),
        ("pip install --index-url", Frontend((), False)),
    ],
)  # fmt: skip
def test_the_options_of_the_calling_pip_are_read(
    tmp_path: Path, words: str, expected: Frontend
) -> None:
    (tmp_path / "links").mkdir()
    options = tuple(option.replace("HERE", str(tmp_path)) for option in expected.options)
    assert read_command_line(words.split(), tmp_path) == replace(expected, options=options)


def test_the_record_of_one_installation_can_be_read_by_its_next_step(tmp_path: Path) -> None:
    source = TorchSource("torch==2.0", ("--find-links", "/x"), is_cuda_build=True)
    source.save(tmp_path / "new" / "torch.json")
    assert load_source(tmp_path / "new" / "torch.json") == source
    assert json.loads((tmp_path / "new" / "torch.json").read_text())["requirement"] == "torch==2.0"
