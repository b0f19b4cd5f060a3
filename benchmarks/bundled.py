"""The model that benchmarks run unless another is named."""

from __future__ import annotations

from pathlib import Path

BUNDLED_MODEL = Path(__file__).resolve().parent.parent / "models" / "tiny-python-llama"
