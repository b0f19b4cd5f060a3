"""Every instruction set that this CPU has gives the reference's bits, in any cut of a prompt."""

from pathlib import Path

import pytest

from tests.kernels.compilers.test_cpu_isa import AVAILABLE_ISAS, run

FILES = ("test_portable_states.py", "test_cuts_of_states.py")


@pytest.mark.some(1)
@pytest.mark.parametrize("isa", AVAILABLE_ISAS)
def test_same_bits_with_each(isa: str) -> None:
    tests = [str(Path(__file__).with_name(name)) for name in FILES]
    done = run(isa, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests)
    assert done.returncode == 0, done.stdout
