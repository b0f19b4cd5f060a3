"""Write the bundled model with int8 weights, in the compressed-tensors format.

    python -m tools.make_int8_model w8a8 /tmp/int8
    python -m tools.make_int8_model w8a16 /tmp/int8

``w8a8`` quantises activations too, token by token; ``w8a16`` packs four weights into one int32.
Weights have a scale for each output channel; the language modeling head stays as it is.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

BUNDLED_MODEL = Path(__file__).resolve().parents[1] / "models" / "tiny-python-llama"
FORMATS = {"w8a8": "int-quantized", "w8a16": "pack-quantized"}

_CHANNELS = {
    "num_bits": 8,
    "type": "int",
    "symmetric": True,
    "strategy": "channel",
    "dynamic": False,
}
_TOKENS = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}


def quantize(name: str, weight: torch.Tensor, kind: str) -> dict[str, torch.Tensor]:
    """Return what the format stores for a weight [out_features, in_features]."""
    scale = (weight.float().abs().amax(1, keepdim=True) / 127).to(weight.dtype)
    values = (weight.float() / scale.float()).round().clamp(-127, 127)
    if kind == "w8a8":
        return {name: values.to(torch.int8), f"{name}_scale": scale}
    unsigned = (values + 128).to(torch.int32).unflatten(1, (-1, 4))
    packed = sum(unsigned[..., i] << 8 * i for i in range(4))
    assert isinstance(packed, torch.Tensor)
    return {
        f"{name}_packed": packed,
        f"{name}_scale": scale,
        f"{name}_shape": torch.tensor(weight.shape),
    }


def quantization_config(kind: str) -> dict[str, Any]:
    """Return the model's ``quantization_config``."""
    group = {
        "targets": ["Linear"],
        "weights": _CHANNELS,
        "input_activations": _TOKENS if kind == "w8a8" else None,
        "output_activations": None,
    }
    return {
        "quant_method": "compressed-tensors",
        "format": FORMATS[kind],
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "config_groups": {"group_0": group},
    }


def make_int8_model(kind: str, directory: Path) -> Path:
    """Write the model to ``directory`` (made if missing) and return ``directory``.

    Raises:
        ValueError: ``kind`` is none of `FORMATS`.
    """
    if kind not in FORMATS:
        raise ValueError(f"{kind!r} is none of {', '.join(FORMATS)}")
    directory.mkdir(parents=True, exist_ok=True)
    stored: dict[str, torch.Tensor] = {}
    for name, weight in load_file(BUNDLED_MODEL / "model.safetensors").items():
        stored |= quantize(name, weight, kind) if name.endswith("proj.weight") else {name: weight}
    save_file(stored, directory / "model.safetensors", metadata={"format": "pt"})
    for file in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(BUNDLED_MODEL / file, directory)
    config = json.loads((BUNDLED_MODEL / "config.json").read_text())
    config["quantization_config"] = quantization_config(kind)
    (directory / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    return directory


def main() -> None:
    """Command line: write one model and say where it is."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kind", choices=list(FORMATS))
    parser.add_argument("directory", type=Path, metavar="OUT_DIR", help="folder to write")
    args = parser.parse_args()
    print(f"wrote {make_int8_model(args.kind, args.directory)}")


if __name__ == "__main__":
    main()
