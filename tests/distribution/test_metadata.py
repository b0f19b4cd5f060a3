"""What the distribution declares, against the metadata of the real upstream wheels."""

from __future__ import annotations

import configparser
import re
import zipfile
from collections import Counter
from email import message_from_string
from email.message import Message
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from distribution.fetch import upstream_wheel
from distribution.metadata import DEV, NARROWER, OWN, Metadata, adapt_metadata
from distribution.pins import TARGETS, Pin, load_pin
from distribution.pristine import build_folder
from tests.distribution.fake_repository import write_files
from vllm.fork.startup.transformers_release import is_tested

pytestmark = pytest.mark.fast

MULTIMODAL = ("torchvision", "torchaudio", "torchcodec")


class Release:
    """One target's upstream wheel: what it declares, and what becomes of it."""

    def __init__(self, pin: Pin, folder: Path) -> None:
        with zipfile.ZipFile(upstream_wheel(pin, build_folder(pin.target) / "wheels")) as wheel:
            infos = [name for name in wheel.namelist() if ".dist-info/" in name]
            wheel.extractall(folder, infos)
        info = next(folder.glob("*.dist-info"))
        self.pin = pin
        self.message: Message = message_from_string((info / "METADATA").read_text())
        self.entry_points = configparser.ConfigParser(delimiters=("=",))
        self.entry_points.read(info / "entry_points.txt")
        self.adapted: Metadata = adapt_metadata(folder, pin)

    def upstream(self, extra: str | None = None) -> list[str]:
        """Return upstream's requirements, of one extra or of none, without the extra's marker."""
        found = []
        for line in self.message.get_all("Requires-Dist", []):
            match = re.fullmatch(r"(.*?)(?:; extra == \"(.*)\")?", line)
            assert match
            if match[2] == extra:
                found.append(match[1])
        return found


@pytest.fixture(scope="module", params=TARGETS)
def release(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Release:
    return Release(load_pin(request.param), tmp_path_factory.mktemp("wheel"))


def names_of(lines: list[str]) -> list[str]:
    return [re.split(r"[^\w.-]", line)[0] for line in lines]


def test_every_requirement_of_upstream_is_kept(release: Release) -> None:
    kept = [*release.adapted.requires, *release.adapted.extras["multimodal"]]
    assert len(release.upstream()) > 50
    expected = [line for line in release.upstream() if not line.startswith("torch==")]
    own = [f"torch{release.pin.torch}", *OWN, *NARROWER.values()]
    assert Counter(kept) == Counter([*own, *expected])


def test_multimodal_packages_are_an_extra_on_cpu_only(release: Release) -> None:
    def names(lines: list[str]) -> set[str]:
        return {re.split(r"[^\w.-]", line)[0] for line in lines} & set(MULTIMODAL)

    expected = {"cpu": (set(), set(MULTIMODAL)), "cuda": (set(MULTIMODAL), set())}
    adapted = release.adapted
    actual = (names(adapted.requires), names(adapted.extras["multimodal"]))
    assert actual == expected[release.pin.target]


def test_transformers_is_one_that_hf_compat_is_tested_with(release: Release) -> None:
    required = [Requirement(line) for line in release.adapted.requires]
    releases = [one.specifier for one in required if one.name == "transformers"]
    for version in ("5.18.0", "5.19.0", "5.19.3", "5.20.0", "6.0.0"):
        assert all(one.contains(version) for one in releases) == is_tested(version), version


def test_torch_is_the_one_that_the_pin_names(release: Release) -> None:
    """Without upstream's label: what stands behind the "+" is the index's choice, not ours."""
    lines = [line for line in release.adapted.requires if line.startswith("torch==")]
    assert lines == ["torch==2.13.0"]


def test_packages_that_are_named_by_address_are_left_out(tmp_path: Path) -> None:
    """vLLM's own CPU wheel asks for a Triton that no index has."""
    address = "triton @ https://example.org/triton-3.8.0-py3-none-any.whl"
    write_files(
        tmp_path,
        {
            "vllm-0.32.0.dist-info/METADATA": f"Requires-Dist: {address}\nRequires-Dist: numpy\n",
            "vllm-0.32.0.dist-info/entry_points.txt": "",
        },
    )
    assert adapt_metadata(tmp_path, load_pin("cpu")).requires == [*OWN, "numpy"]


def test_without_compiled_files_torch_may_be_older_and_compiled_packages_are_an_extra(
    tmp_path: Path,
) -> None:
    release = Release(load_pin("cuda", kernels="source"), tmp_path)
    adapted, pin = release.adapted, release.pin
    extras = adapted.extras
    assert [line for line in adapted.requires if line.startswith("torch")] == ["torch>=2.11"]
    assert sorted(names_of(extras["multimodal"])) == sorted(pin.multimodal)
    assert sorted(names_of(extras["compiled"])) == sorted(pin.compiled)
    kept = [*adapted.requires, *extras["multimodal"], *extras["compiled"]]
    expected = [*release.upstream(), *OWN, *NARROWER]
    assert Counter(names_of(kept)) == Counter(names_of(expected))


def test_upstreams_extras_are_kept(release: Release) -> None:
    names = release.message.get_all("Provides-Extra", [])
    assert len(names) > 10
    own = {"bulk", "datatrove", "dev", "eval", "multimodal", "ray", "rl", "xformers"}
    assert not own & {*names}
    assert set(release.adapted.extras) == {*names, *own}
    for name in names:
        assert release.adapted.extras[name] == release.upstream(name), name


def test_the_tools_of_this_project_are_an_extra(release: Release) -> None:
    assert release.adapted.extras["dev"] == DEV


def test_upstreams_entry_points_are_kept(release: Release) -> None:
    sections = release.entry_points.sections()
    assert release.adapted.entry_points == {
        group: [f"{name} = {value}" for name, value in release.entry_points.items(group)]
        for group in sections
    }
    assert release.adapted.entry_points["console_scripts"] == [
        "vllm = vllm.entrypoints.cli.main:main"
    ]
    assert "vllm.general_plugins" in sections
