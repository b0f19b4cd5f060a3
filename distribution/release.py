"""What `make wheel` puts beside the wheel, its hash, and what it says of installing it.

python -m distribution.release FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

from distribution.errors import DistributionError
from distribution.fetch import sha256_of
from distribution.pins import ROOT, load_pin

SUMS = "SHA256SUMS"


def describe_wheel(folder: Path, root: Path = ROOT) -> str:
    """Write SHA256SUMS for the wheel in `folder`; return how to install it elsewhere.

    Raises:
        DistributionError: there is not one wheel of vLLM.
    """
    wheels = sorted(folder.glob("vllm-*.whl"))
    if len(wheels) != 1:
        raise DistributionError(
            f"{folder} holds {len(wheels)} wheels of vLLM: run `make wheel` again."
        )
    wheel = wheels[0]
    (folder / SUMS).write_text(f"{sha256_of(wheel)}  {wheel.name}\n")
    pin = load_pin("cpu" if "+cpu" in wheel.name else "cuda", root)
    steps = [f"sha256sum -c {SUMS}", f"pip install {wheel.name}"]
    if pin.torch_index is not None:
        # A wheel cannot say where pip is to look for torch.
        steps.insert(1, f"pip install torch{pin.torch} --index-url {pin.torch_index}"
                        "    # else pip takes PyPI's build for CUDA")  # fmt: skip
    listed = "".join(f"\n  {step}" for step in steps)
    size = wheel.stat().st_size / 1e6
    return f"{wheel} ({size:.0f} MB) and {SUMS} are there. On another machine, beside them:{listed}"


if __name__ == "__main__":
    try:
        print(describe_wheel(Path(sys.argv[1])))
    except DistributionError as error:
        sys.exit(f"error: {error}")
