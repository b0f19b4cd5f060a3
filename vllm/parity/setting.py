"""What is compared: a model, a dtype, prompts and how they are continued."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

MODES = ("upstream", "hf_compat", "exact", "deterministic")
"""Ways to run the engine: without flags, with ``hf_compat=True``, with ``hf_compat="exact"``, with
``hf_compat=True, deterministic=True``.
"""

DTYPES = ("float32", "bfloat16", "float16")

PROMPTS = (
    "def fibonacci(n):\n",
    "import os\nimport sys\n\ndef main(",
    "class Stack:\n    def __init__(self",
    "for line in file:\n    ",
    'raise ValueError("',
    "with open(path) as f:\n    ",
    "try:\n    import",
    "return [x for x in ",
)


def check_dtype(dtype: str) -> None:
    """Check the name of a dtype.

    Raises:
        ValueError: it is none of `DTYPES`.
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype={dtype!r} is none of {', '.join(DTYPES)}.")


def check_model(model: str) -> None:
    """Check that a model is a folder with a configuration, or may be a name on the Hub.

    Raises:
        ValueError: it is neither.
    """
    path = Path(model)
    is_path = model.startswith((".", "/", "~")) or model.count("/") > 1  # a name is OWNER/NAME
    if path.is_file() or (is_path and not path.is_dir()):
        raise ValueError(
            f"{model} is no folder: give one with a config.json, or a name on the Hub."
        )
    if path.is_dir() and not (path / "config.json").is_file():
        raise ValueError(f"{model} has no config.json: give a folder with one.")


@dataclass(frozen=True)
class Setting:
    """What both sides are asked.

    Attributes:
        model: a folder, or a name on the Hub.
        dtype: of `DTYPES`.
        prompts: texts.
        max_new_tokens: of each answer.
        generation: further fields of `GenerationConfig`, such as ``repetition_penalty``.
        trust_remote_code: whether code that comes with the model is run, as in Transformers.
    """

    model: str
    dtype: str = "bfloat16"
    prompts: tuple[str, ...] = PROMPTS
    max_new_tokens: int = 48
    generation: dict[str, Any] | None = None
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        check_dtype(self.dtype)
        if not self.prompts:
            raise ValueError("there are no prompts: give at least one.")
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens={self.max_new_tokens} must be at least 1.")

    @property
    def fields(self) -> dict[str, Any]:
        """Return the fields of `GenerationConfig` of every request."""
        return {"max_new_tokens": self.max_new_tokens, **(self.generation or {})}

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def bundled_model() -> str:
    """Return the small model that the repository holds.

    Raises:
        ValueError: this installation was made from a wheel, which has no models.
    """
    folder = Path(__file__).resolve().parents[2] / "models" / "tiny-python-llama"
    if not folder.is_dir():
        raise ValueError("a wheel has no bundled model: name a model, or install with `-e`.")
    return str(folder)
