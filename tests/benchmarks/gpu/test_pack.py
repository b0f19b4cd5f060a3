"""What travels to a GPU machine."""

from __future__ import annotations

import tarfile
from email import message_from_bytes
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from benchmarks.gpu import (
    build,
    pack,
)
from distribution.pristine import pristine_text


def wheels() -> dict[str, str]:
    """Return the versions of wheels.txt."""
    lines = [line for line in pack.WHEELS.read_text().splitlines() if not line.startswith("#")]
    pairs = [line.split("==") for line in lines]
    assert all(len(pair) == 2 for pair in pairs)
    return {build.normalised(name): version for name, version in pairs}


def test_the_versions_of_the_wheels_are_those_that_upstream_takes() -> None:
    metadata = next(pristine_text("cuda").glob("*.dist-info/METADATA"))
    lines = message_from_bytes(metadata.read_bytes()).get_all("Requires-Dist") or []
    checked = 0
    for requirement in map(Requirement, lines):
        version = wheels().get(build.normalised(requirement.name))
        if version is not None and requirement.marker is None:
            assert requirement.specifier.contains(version), requirement
            checked += 1
    assert checked >= 12


def test_upstreams_package_travels_without_what_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = tmp_path / "tree"
    for name in (
        "vllm/a.py",
        "vllm/_C.abi3.so",
        "vllm/vllm-rs",
        "vllm/b.pyc",
        "x.dist-info/RECORD",
    ):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(name)
    monkeypatch.setattr(pack, "pristine_text", lambda target: {"cuda": tree}[target])
    pack.pack_text(tmp_path / "text.tar.xz")
    with tarfile.open(tmp_path / "text.tar.xz") as archive:
        names = [member.name for member in archive if member.isfile()]
    assert sorted(names) == ["vllm/a.py", "x.dist-info/RECORD"]


def test_what_is_too_large_is_refused() -> None:
    pack.check_size(10 << 20, 54 << 20)
    with pytest.raises(ValueError, match=r"^the repository \(10\.0 MiB\) .* more than 64 MiB"):
        pack.check_size(10 << 20, (54 << 20) + 1)
