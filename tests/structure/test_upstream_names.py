"""The list of upstream's names is complete, and what another release lacks is found."""

from __future__ import annotations

from pathlib import Path
from zipfile import ZipFile

import pytest

from distribution.fetch import upstream_wheel
from distribution.pins import load_pin
from distribution.pristine import build_folder
from tools.upstream_names import missing_names, used_names

pytestmark = pytest.mark.fast


@pytest.fixture
def pinned() -> Path:
    return upstream_wheel(load_pin("cpu"), build_folder("cpu") / "wheels")


def test_the_pinned_wheel_has_all_of_them(pinned: Path) -> None:
    assert sum(map(len, used_names().values())) > 150
    assert missing_names(pinned) == []


def test_a_name_that_is_gone_is_found(pinned: Path, tmp_path: Path) -> None:
    with ZipFile(pinned) as whole, ZipFile(tmp_path / "w.whl", "w") as w:
        for name in whole.namelist():
            if name.endswith(".py") and name != "vllm/v1/sample/sampler.py":
                text = whole.read(name).decode()
                if name == "vllm/v1/outputs.py":
                    text = text.replace("SamplerOutput", "SampledOutput")
                w.writestr(name, text)
    missing = missing_names(tmp_path / "w.whl")
    assert "vllm.v1.sample.sampler.Sampler" in missing
    assert "vllm.v1.outputs.SamplerOutput" in missing
    assert "vllm.v1.outputs.LogprobsTensors" not in missing
