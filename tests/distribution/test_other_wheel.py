"""Another build of the pinned release: taken if all but its compiled files is known."""

from __future__ import annotations

import subprocess
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from distribution.errors import DistributionError
from distribution.fetch import sha256_of, upstream_wheel
from distribution.other_wheel import text_digest
from distribution.pins import TARGETS, load_pin
from distribution.pristine import build_folder, pristine_tree
from distribution.tree import assembled_tree
from tests.distribution.fake_repository import (
    PATCHED,
    TEXT_SHA256,
    UPSTREAM,
    contents,
    write_pin,
    write_wheel,
)

pytestmark = pytest.mark.fast

OWN = {**UPSTREAM, "vllm/_C.abi3.so": "another compiler's", "vllm/_version.py": "version = '?'\n"}
REQUIRES = "Requires-Dist: torch==2.0+cpu; platform_machine == 'x86_64'\n"


def give(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    files: Mapping[str, str] = OWN,
    version: str = "1.2.0+cpu",
    requires: str = REQUIRES,
) -> Path:
    """Name a wheel of the release's, as upstream's own would be called, for the installation."""
    wheel = tmp_path / f"vllm-{version}-cp38-abi3-linux_x86_64.whl"
    write_wheel(wheel, files, requires)
    monkeypatch.setenv("VLLM_UPSTREAM_WHEEL", str(wheel))
    return wheel


def test_another_build_of_the_release_is_taken(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pinned = pristine_tree("cpu", repository)
    wheel = give(tmp_path, monkeypatch)
    assert upstream_wheel(load_pin("cpu", repository), tmp_path) == wheel
    own = pristine_tree("cpu", repository)
    assert own != pinned
    assert own.name == f"pristine-{sha256_of(wheel)[:12]}"
    assert (own / "vllm/_C.abi3.so").read_text() == "another compiler's"


def test_the_package_is_made_again_from_it_and_from_the_pinned_one(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compiled() -> str:
        made = contents(assembled_tree("cpu", link=False, root=repository))
        assert {name: made[name] for name in PATCHED if name.endswith("engine.py")} == {
            name: text for name, text in PATCHED.items() if name.endswith("engine.py")
        }
        return made["vllm/_C.abi3.so"]

    assert compiled() == "binary\n"
    give(tmp_path, monkeypatch)
    assert compiled() == "another compiler's"
    monkeypatch.delenv("VLLM_UPSTREAM_WHEEL")
    assert compiled() == "binary\n"


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"files": {**OWN, "vllm/planted.py": ""}}, "its text has the digest [0-9a-f]{64}"),
        ({"files": {**OWN, "vllm/engine.py": "run = print\n"}}, "its text has the digest"),
        ({"files": {k: v for k, v in OWN.items() if k != "vllm/models/llama.py"}}, "its text"),
        ({"files": {k: v for k, v in OWN.items() if ".so" not in k}}, r"_C\.abi3\.so is in one"),
        ({"files": {**OWN, "vllm/__init__.so": ""}}, r"__init__\.so is in one of the two only"),
        (
            {"files": {**OWN, "./vllm/engine.py": ""}},
            r"it holds \./vllm/engine\.py, which is neither",
        ),
        ({"files": {**OWN, "vllm/../evil.py": ""}}, r"it holds vllm/\.\./evil\.py, which is"),
        ({"files": {**OWN, "evil.pth": "import os"}}, r"it holds evil\.pth, which is neither"),
        ({"files": {**OWN, "other/__init__.py": ""}}, "which is neither in the package"),
        (
            {"requires": f"{REQUIRES}Requires-Dist: evil\n"},
            "its requirements and entry points have",
        ),
        ({"version": "1.2.1"}, r"it has version 1\.2\.1, not 1\.2\.0"),
        ({"requires": "Requires-Dist: torch==2.1\n"}, r"it was not compiled for torch==2\.0"),
        ({"requires": ""}, r"it was not compiled for torch==2\.0"),
    ],
)
def test_anything_else_is_refused_with_what_is_not_equal(
    repository: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, str],
    problem: str,
) -> None:
    wheel = give(tmp_path, monkeypatch, **changes)  # type: ignore[arg-type]
    with pytest.raises(DistributionError, match=problem) as refused:
        pristine_tree("cpu", repository)
    assert str(refused.value).startswith(f"{wheel} is not the wheel that upstream.toml pins")
    assert "unset VLLM_UPSTREAM_WHEEL" in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not list(build_folder("cpu", repository).glob("pristine*"))


def test_a_file_that_is_no_wheel_is_refused(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    give(tmp_path, monkeypatch).write_bytes(b"<html>not found</html>")
    with pytest.raises(DistributionError, match="it is no wheel at all"):
        pristine_tree("cpu", repository)


def test_a_second_known_text_is_as_good(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = give(tmp_path, monkeypatch, {**OWN, "vllm/models/llama.py": "layers = 3\n"})
    with zipfile.ZipFile(wheel) as archive:
        digest = text_digest(archive)
    pin = load_pin("cpu", repository)
    write_pin(repository, pin.sha256, text_sha256=(TEXT_SHA256, digest))
    assert upstream_wheel(load_pin("cpu", repository), tmp_path) == wheel


@pytest.mark.parametrize("target", TARGETS)
def test_the_pinned_text_is_the_pinned_wheels(target: str, tmp_path: Path) -> None:
    """As this project computes it, and as a shell does."""
    pin = load_pin(target)
    wheel = upstream_wheel(pin, build_folder(target) / "wheels")
    with zipfile.ZipFile(wheel) as archive:
        assert text_digest(archive) == pin.text_sha256[0]
        assert {f"vllm/{name}" for name in pin.compiled_files} <= set(archive.namelist())
        archive.extractall(tmp_path, [n for n in archive.namelist() if not n.endswith(".so")])
    shell = (
        "find vllm -type f ! -name '*.so' ! -name vllm-rs ! -path vllm/_version.py | "
        "LC_ALL=C sort | xargs -d '\\n' sha256sum | sha256sum"
    )
    said = subprocess.run(shell, shell=True, cwd=tmp_path, capture_output=True, text=True)
    assert said.stdout.split()[0] == pin.text_sha256[0]
