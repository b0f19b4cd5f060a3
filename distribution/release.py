"""What `make wheel` puts beside the wheel: its hash, and how pip finds torch for it.

python -m distribution.release FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

from distribution.errors import DistributionError
from distribution.fetch import sha256_of
from distribution.pins import ROOT, load_pin

SUMS = "SHA256SUMS"
REQUIREMENTS = "requirements.txt"


def describe_wheel(folder: Path, root: Path = ROOT) -> str:
    """Write SHA256SUMS and requirements.txt for the wheel in `folder`; return what to tell.

    A wheel cannot say where pip is to look for torch, a file of requirements can.

    Raises:
        DistributionError: there is not one wheel.
    """
    wheels = sorted(folder.glob("vllm-*.whl"))
    if len(wheels) != 1:
        raise DistributionError(
            f"{folder} holds {len(wheels)} wheels of vLLM: run `make wheel` again."
        )
    wheel = wheels[0]
    (folder / SUMS).write_text(f"{sha256_of(wheel)}  {wheel.name}\n")
    name, version = wheel.name.split("-")[:2]
    index = load_pin("cpu", root).torch_index if "+cpu" in version else None
    (folder / REQUIREMENTS).write_text(
        f"# pip install -r {REQUIREMENTS}: the wheel beside this file, and what it requires.\n"
        + (f"--extra-index-url {index}\n" if index else "")
        + f"--find-links .\n{name}=={version}\n"
    )
    return (
        f"{wheel} ({wheel.stat().st_size / 1e6:.0f} MB), {SUMS} and {REQUIREMENTS} are there.\n"
        f"On another machine:  cd {folder} && sha256sum -c {SUMS} && pip install -r {REQUIREMENTS}"
    )


if __name__ == "__main__":
    try:
        print(describe_wheel(Path(sys.argv[1])))
    except DistributionError as error:
        sys.exit(f"error: {error}")
