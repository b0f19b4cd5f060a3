"""Tests of what only some CPUs have."""

from __future__ import annotations

import pytest
import torch

NEEDS_AVX512 = pytest.mark.skipif(
    not torch.cpu._is_avx512_supported(), reason="the operator is there with AVX-512 only"
)
