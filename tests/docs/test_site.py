"""The documentation builds as a site without a warning, and its search knows the pages."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.engines import ROOT


def test_the_site(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr  # it is strict: a warning is an error
    found = json.loads((tmp_path / "search" / "search_index.json").read_text())["docs"]
    pages = {entry["location"].partition("#")[0] for entry in found}
    sources = {path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")}
    expected = {str(path.with_suffix(".html")) for path in sources if path.name != "README.md"}
    assert expected <= pages
    assert any("attach_kernels" in entry["location"] for entry in found)
