"""Makes all committed digests of deterministic mode's bits anew, or says which would change.

    python -m tools.digests [--write] [KIND ...]

They change only with the specification (``docs/numerics``). Without ``--write`` the status is 1 if
any would change. All kinds take a few minutes.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.gpu import model_bits
from tests.deterministic import digests as of_models
from tests.kernels import portable_digests
from vllm.deterministic import self_check

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Kind:
    """Digests of one kind.

    Attributes:
        file: that holds them.
        text: returns what the file should be on this machine.
    """

    file: Path
    text: Callable[[], str]


def _self_check_text() -> str:
    """Return the module with the digests that this machine computes."""
    text = SELF_CHECK.read_text()
    for name, found in self_check.digests():
        text = text.replace(f'"{name}": "{self_check.EXPECTED[name]}"', f'"{name}": "{found}"')
    return text


def _answers_text() -> str:
    """Return the answers of an attached model that GPUs are held to."""
    found = {
        dtype: [asdict(one) for one in model_bits.answers(dtype)] for dtype in model_bits.DTYPES
    }
    return json.dumps(found) + "\n"


SELF_CHECK = ROOT / "vllm" / "deterministic" / "self_check.py"
KINDS = {
    "operations": Kind(
        portable_digests.EXPECTED,
        lambda: json.dumps(portable_digests.digests(), indent=1) + "\n",
    ),
    "frequencies": Kind(
        of_models.FILES["frequencies"],
        lambda: json.dumps(of_models.frequency_digests(), indent=1) + "\n",
    ),
    "logits": Kind(
        of_models.FILES["logits"], lambda: json.dumps(of_models.logit_digests(), indent=1) + "\n"
    ),
    "start-up check": Kind(SELF_CHECK, _self_check_text),
    "answers for GPUs": Kind(model_bits.EXPECTED, _answers_text),
}


def changed(names: list[str], *, write: bool) -> list[str]:
    """Return the kinds whose file is another one than this machine would write.

    Args:
        names: of the kinds.
        write: whether the files are written.
    """
    found = []
    for name in names:
        kind = KINDS[name]
        text = kind.text()
        if text != kind.file.read_text():
            found.append(name)
            if write:
                kind.file.write_text(text)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    names = options.kinds or list(KINDS)
    if unknown := [name for name in names if name not in KINDS]:
        parser.error(f"{unknown[0]!r} is no kind: there are {', '.join(KINDS)}.")
    found = changed(names, write=options.write)
    for name in names:
        state = "unchanged" if name not in found else "written" if options.write else "would change"
        print(f"{name}: {state} ({KINDS[name].file.relative_to(ROOT)})")
    sys.exit(bool(found) and not options.write)


if __name__ == "__main__":
    main()
