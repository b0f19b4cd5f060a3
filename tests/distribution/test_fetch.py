"""The upstream wheel: the pinned one or a sentence, and nothing half-downloaded."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest

from distribution.errors import DistributionError
from distribution.fetch import upstream_wheel
from distribution.pins import Pin, load_pin
from distribution.pristine import pristine_tree
from tests.distribution.fake_repository import UPSTREAM, WHEEL, write_pin, write_wheel

pytestmark = pytest.mark.fast

UNREACHABLE = "http://127.0.0.1:9/simple"  # the discard port: connections are refused


@pytest.fixture
def pin(repository: Path) -> Pin:
    return load_pin("cpu", repository)


@pytest.fixture
def wheels(repository: Path) -> Path:
    """The folder that wheels are kept in; holds the pinned one."""
    return repository / "build" / "cpu" / "wheels"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all that pip downloads from."""
    folder = tmp_path / "index"
    folder.mkdir()
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    for name, value in (
        ("PIP_CONFIG_FILE", "/dev/null"),
        ("PIP_FIND_LINKS", str(folder)),
        ("PIP_NO_INDEX", "1"),
        ("PIP_NO_CACHE_DIR", "1"),
    ):
        monkeypatch.setenv(name, value)
    return folder


# --- a wheel that is there -----------------------------------------------------------------------
def test_a_cached_wheel_is_used(pin: Pin, wheels: Path) -> None:
    assert upstream_wheel(pin, wheels) == wheels / WHEEL


def test_a_cached_wheel_with_another_hash_is_refused(pin: Pin, wheels: Path) -> None:
    actual = write_wheel(wheels / WHEEL, {**UPSTREAM, "vllm/planted.py": ""})
    with pytest.raises(DistributionError) as refused:
        upstream_wheel(pin, wheels)
    for part in (str(wheels / WHEEL), actual, pin.sha256, "remove the file"):
        assert part in str(refused.value)


@pytest.mark.parametrize("as_folder", [True, False], ids=["folder", "file"])
def test_the_given_wheel_is_used_where_it_is(
    pin: Pin, wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_folder: bool
) -> None:
    given = (wheels / WHEEL).rename(tmp_path / WHEEL)
    monkeypatch.setenv("VLLM_UPSTREAM_WHEEL", str(tmp_path if as_folder else given))
    assert upstream_wheel(pin, wheels) == given
    assert not list(wheels.iterdir())


def test_the_given_wheel_may_have_any_name(
    pin: Pin, wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = (wheels / WHEEL).rename(tmp_path / "renamed.zip")
    monkeypatch.setenv("VLLM_UPSTREAM_WHEEL", str(given))
    assert upstream_wheel(pin, wheels) == given


def test_a_given_wheel_with_another_hash_is_refused(
    pin: Pin, wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even though the right one is cached: what the user asked for is not ignored."""
    write_wheel(tmp_path / WHEEL, {})
    monkeypatch.setenv("VLLM_UPSTREAM_WHEEL", str(tmp_path / WHEEL))
    with pytest.raises(DistributionError, match="no other build of the same release"):
        upstream_wheel(pin, wheels)


@pytest.mark.parametrize("name", ["absent.whl", "."], ids=["file", "folder without it"])
def test_a_given_wheel_that_is_not_there_is_refused(
    pin: Pin, wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("VLLM_UPSTREAM_WHEEL", str(tmp_path / name))
    with pytest.raises(DistributionError, match=r"VLLM_UPSTREAM_WHEEL names .*does not exist"):
        upstream_wheel(pin, wheels)


# --- a wheel that pip downloads ------------------------------------------------------------------
def test_pip_downloads_the_pinned_wheel(pin: Pin, wheels: Path, index: Path) -> None:
    (wheels / WHEEL).rename(index / WHEEL)
    assert upstream_wheel(pin, wheels) == wheels / WHEEL
    assert (wheels / WHEEL).read_bytes() == (index / WHEEL).read_bytes()
    assert [path.name for path in wheels.iterdir()] == [WHEEL]


def test_a_downloaded_wheel_with_another_hash_is_refused(
    pin: Pin, wheels: Path, index: Path
) -> None:
    (wheels / WHEEL).unlink()
    write_wheel(index / WHEEL, {})
    with pytest.raises(DistributionError, match=r"pip could not download upstream-cpu 1\.2\.0"):
        upstream_wheel(pin, wheels)
    assert not list(wheels.iterdir())


def test_without_a_network_one_sentence_says_what_to_do(
    pin: Pin, wheels: Path, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (wheels / WHEEL).unlink()
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", UNREACHABLE)
    monkeypatch.setenv("PIP_RETRIES", "0")
    with pytest.raises(DistributionError) as refused:
        upstream_wheel(pin, wheels)
    sentence = str(refused.value)
    assert sentence.startswith("pip could not download upstream-cpu 1.2.0 (")
    assert "check the network" in sentence
    assert "set VLLM_UPSTREAM_WHEEL to its path." in sentence
    assert "\n" not in sentence
    assert not list(wheels.iterdir())


# --- unpacking -----------------------------------------------------------------------------------
def test_a_wheel_that_cannot_be_unpacked_leaves_no_tree(repository: Path, wheels: Path) -> None:
    """Upstream's file itself may be damaged; its hash is then right."""
    damaged = (wheels / WHEEL).read_bytes().replace(b"second()", b"damage()")
    (wheels / WHEEL).write_bytes(damaged)
    write_pin(repository, hashlib.sha256(damaged).hexdigest())
    with pytest.raises(zipfile.BadZipFile, match="Bad CRC"):
        pristine_tree("cpu", repository)
    assert [path.name for path in wheels.parent.iterdir()] == ["wheels"]
