"""Makes the scripts of ``tools/`` importable for the tests of the models they write."""

import sys
from pathlib import Path

# The tools are scripts, not a package of the project.
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
