"""Every instruction set that this CPU has gives the committed bits, with any number of threads."""

import json

import pytest

from tests.kernels import portable_digests
from tests.kernels.compilers.test_cpu_isa import AVAILABLE_ISAS, run


def differing(actual: dict[str, str]) -> list[str]:
    expected = json.loads(portable_digests.EXPECTED.read_text())
    assert actual.keys() == expected.keys()
    return [name for name, digest in expected.items() if actual[name] != digest]


def test_digests() -> None:
    assert not differing(portable_digests.digests())


@pytest.mark.parametrize("isa", AVAILABLE_ISAS)
def test_digests_with_each_instruction_set(isa: str) -> None:
    """Also with two threads, in a process that flushes subnormal numbers for its own purposes."""
    options = ("--threads=2", "--flush-subnormals")
    done = run(isa, "-m", portable_digests.__name__, *options)
    assert done.returncode == 0, done.stderr
    assert not differing(json.loads(done.stdout))
