"""What the Makefile asks before it starts: is all there that it needs, and how long will it take.

    python3 -m distribution.preflight VENV [GOAL...]

says what ``make GOAL...`` is going to do, or, in one sentence each, what is missing. It is run by
the machine's Python, before there is an environment, and may meet one that is too old for the rest
of this project.
"""

from __future__ import annotations

import importlib.util
import platform
import sys
import sysconfig
from pathlib import Path

OLDEST = (3, 11)
"""Of Python: the oldest that this project is for."""

MEMORY = 4 << 30
"""Bytes with which kernels compile and the demo runs."""

INSTALLATION = "about 2 minutes, 0.9 GB to download, 4.5 GB on disk"
STEPS = {
    "demo": "asks Transformers and this vLLM the same questions and compares (about 3 minutes)",
    "test": "runs all tests but the longest (30 to 55 minutes; `make test-fast` takes 5)",
    "test-fast": "runs the fast tests (about 5 minutes; `make test` runs more)",
    "wheel": "builds the wheel into dist/ (about 3 minutes)",
}
"""What follows the installation, on two cores."""


def main(venv: Path, goals: list[str]) -> int:
    """Print the plan and return 0, or what is missing and return 1."""
    missing = [*_missing_of_python(venv)] or [*_missing_of_machine(venv)]
    for sentence in missing:
        print(f"error: {sentence}", file=sys.stderr)
    if not missing:
        _print_plan(venv, goals)
    return 1 if missing else 0


def _print_plan(venv: Path, goals: list[str]) -> None:
    installs = (
        f"brings {venv} up to date"
        if any(venv.glob(".installed*"))
        else f"installs this vLLM into {venv} ({INSTALLATION})"
    )
    steps = [] if goals == ["wheel"] else [installs]
    steps += [STEPS[goal] for goal in goals if goal in STEPS]
    print(" ".join(["make", *goals]))
    for number, step in enumerate(steps, start=1):
        print(f"  {number}. {step}", flush=True)


def _missing_of_python(venv: Path):  # type: ignore[no-untyped-def]
    """Yield what is wrong with this Python; nothing else of the project is imported yet."""
    here = f"{platform.python_version()} ({sys.executable})"
    if sys.version_info < OLDEST:
        yield (
            f"This is Python {here}, and this project needs 3.11, 3.12 or 3.13: install one, and "
            "name it with `make PYTHON=python3.12`."
        )
    elif not (venv / "bin" / "python").exists() and importlib.util.find_spec("ensurepip") is None:
        yield (
            f"Python {here} lacks the module that puts pip into a virtual environment: install "
            "it (Debian, Ubuntu: apt install python3-venv)."
        )
    if sys.platform != "linux" or platform.machine() != "x86_64":
        yield (
            f"This machine is {platform.system()} on {platform.machine()}, and this project is "
            "built for Linux on x86_64: use such a machine, or a container of that platform."
        )
    header = Path(sysconfig.get_path("include"), "Python.h")
    if sys.version_info >= OLDEST and not header.exists():
        yield (
            f"{header} was not found, with which torch.compile makes code for CPUs: install "
            "Python's headers (Debian, Ubuntu: apt install python3-dev)."
        )


def _missing_of_machine(venv: Path):  # type: ignore[no-untyped-def]
    """Yield what else is missing."""
    from distribution.cxx import check_cxx
    from distribution.disk import check_disk, needs
    from distribution.environment import installed_version
    from distribution.errors import DistributionError
    from distribution.memory import check_memory
    from distribution.pristine import build_folder
    from distribution.system_libraries import check_system_libraries
    from distribution.target import choose_target
    from distribution.torch_source import TorchSource

    site = next(venv.glob("lib/python3*/site-packages"), venv)
    try:
        target = choose_target(site)
    except DistributionError as error:
        yield str(error)
        return
    has_torch = installed_version("torch", site) is not None
    # Which torch it will be is not known yet: at least a small one.
    torch = None if has_torch else TorchSource("torch")
    required = needs(target, build_folder(target), torch=torch, site=site)
    for check in (
        check_cxx,
        lambda: check_system_libraries(target),
        lambda: check_memory(MEMORY),
        lambda: check_disk(required),
    ):
        try:
            check()
        except DistributionError as error:
            yield str(error)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
