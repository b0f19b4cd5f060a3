"""What travels to a GPU machine."""

from __future__ import annotations

import subprocess
import sys
from email import message_from_bytes
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from benchmarks.gpu import pack
from distribution import kernels
from distribution.pristine import pristine_text
from tests.engines import ROOT


def wheels() -> dict[str, str]:
    """Return the versions of wheels.txt."""
    lines = [line for line in pack.WHEELS.read_text().splitlines() if not line.startswith("#")]
    pairs = [line.split("==") for line in lines]
    assert all(len(pair) == 2 for pair in pairs)
    return {canonicalize_name(name): version for name, version in pairs}


def test_the_versions_of_the_wheels_are_those_that_upstream_takes() -> None:
    metadata = next(pristine_text("cuda").glob("*.dist-info/METADATA"))
    lines = message_from_bytes(metadata.read_bytes()).get_all("Requires-Dist") or []
    checked = 0
    for requirement in map(Requirement, lines):
        version = wheels().get(canonicalize_name(requirement.name))
        if version is not None and requirement.marker is None:
            assert requirement.specifier.contains(version), requirement
            checked += 1
    assert checked >= 12


def test_what_is_unpacked_is_what_was_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With bytecode that is taken though the files' times are others."""
    folder = tmp_path / "packing"
    (folder / "some").mkdir(parents=True)
    (folder / "some" / "module.py").write_text("VALUE = 1\n")
    (folder / "shapes.json").write_text("{}")
    monkeypatch.setattr(pack, "ARCHIVE", tmp_path / "pack" / "site.tar.xz")
    monkeypatch.setattr(pack, "SITE", tmp_path / "site")
    pack.compile_all(folder)
    (folder / pack.SOURCES_FILE).write_text(pack.sources_digest())
    pack.write_archive(folder)
    pack.unpack()
    (code,) = (tmp_path / "site").rglob("*.pyc")
    assert code.read_bytes()[4:8] == b"\x01\x00\x00\x00"  # unchecked, by a hash (PEP 552)
    (tmp_path / "site" / "some" / "module.py").write_text("VALUE = 2\n")
    done = subprocess.run(
        [sys.executable, "-c", "import some.module; print(some.module.VALUE)"],
        cwd=tmp_path / "site", check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout == "1\n"
    pack.unpack()  # what is there already stays
    assert (tmp_path / "site" / "some" / "module.py").read_text() == "VALUE = 2\n"


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty file, for this Python."""
    file = tmp_path / "site.tar.xz"
    monkeypatch.setattr(pack, "ARCHIVE", file)
    file.touch()
    (tmp_path / "python.txt").write_text(pack.version())
    (tmp_path / pack.SOURCES_FILE).write_text(pack.sources_digest())
    return file


def test_an_archive_for_another_python_is_refused(archive: Path) -> None:
    (archive.parent / "python.txt").write_text("3.99")
    with pytest.raises(ValueError, match=r"archive is for Python 3\.99, and this is 3"):
        pack.unpack()


def test_an_archive_of_other_sources_is_refused(archive: Path) -> None:
    """Or old kernels would be measured, and taken for the new ones."""
    kept = archive.parent / pack.SOURCES_FILE
    kept.write_text("0" * 64)
    with pytest.raises(ValueError, match=r"made of other sources than this repository's"):
        pack.unpack()
    kept.unlink()
    with pytest.raises(ValueError, match=r"made of other sources than this repository's"):
        pack.unpack()


def test_each_file_of_the_sources_counts(tmp_path: Path) -> None:
    (tmp_path / "csrc").mkdir()
    (tmp_path / "csrc" / "one.cu").write_text("1")
    found = {pack.sources_digest(tmp_path)}
    (tmp_path / "csrc" / "two.cu").write_text("")
    found.add(pack.sources_digest(tmp_path))
    (tmp_path / "csrc" / "one.cu").write_text("2")
    found.add(pack.sources_digest(tmp_path))
    assert len(found) == 3
    (tmp_path / "csrc" / "one.pyc").write_text("made when it is run")
    assert pack.sources_digest(tmp_path) in found
    assert all((ROOT / name).exists() for name in pack.SOURCES)


def test_what_the_machine_lacks_is_named(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack, "NEEDED", ("torch", "no_such_module", "neither.this"))
    with pytest.raises(ValueError, match=r"has not no_such_module, neither\.this, which"):
        pack.unpack()


def test_what_is_too_large_is_refused() -> None:
    pack.check_size(10 << 20, 50 << 20)
    with pytest.raises(ValueError, match=r"^the repository \(10\.0 MiB\) .* more than 60 MiB"):
        pack.check_size(10 << 20, (50 << 20) + 1)


def test_code_is_built_for_the_architectures_that_are_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """CMake would read CUDAARCHS the first time alone."""
    monkeypatch.setenv("CUDAARCHS", "90a-real")
    assert kernels._architectures() == "-DCMAKE_CUDA_ARCHITECTURES=90a-real"
    monkeypatch.delenv("CUDAARCHS")
    assert kernels._architectures() == "-UCMAKE_CUDA_ARCHITECTURES"
