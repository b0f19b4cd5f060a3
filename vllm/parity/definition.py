"""``vllm parity twin``: how vLLM's definition of a model compares with Transformers'."""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from transformers import AutoConfig

from vllm.fork.flags import ForkFlags
from vllm.hf_numerics.unlike_models import check_long_texts
from vllm.parity.setting import check_dtype
from vllm.twin.process import Answer, Task, examine_elsewhere
from vllm.twin.setting import EngineSetting


def compare_definition(
    model: str,
    *,
    dtype: str,
    is_upstream: bool = False,
    max_model_len: int | None = None,
    remote_code: bool = False,
) -> Answer:
    """Compare both definitions of a model by a twin, of which the configuration is needed alone.

    Args:
        model: a folder, or a name on the Hub.
        dtype: in which bits are compared, by torch's name.
        is_upstream: whether the engine has no flag, and else hf_compat.
        max_model_len: tokens of the longest text; None for any.
        remote_code: whether the model's own code may be run.

    Raises:
        ValueError: there is no such configuration, dtype or length; or see `check_long_texts`.
    """
    check_dtype(dtype)
    if max_model_len is not None and max_model_len < 1:
        raise ValueError(f"--max-model-len {max_model_len} must be at least 1.")
    if Path(model).is_file() or (_is_path(model) and not Path(model).is_dir()):
        raise ValueError(
            f"{model} is no folder: give one with a config.json, or a name on the Hub."
        )
    try:
        config = AutoConfig.from_pretrained(model, trust_remote_code=remote_code)
    except (OSError, KeyError) as error:
        raise ValueError(f"{model} has no configuration: {str(error).splitlines()[0]}") from None
    if not is_upstream:
        check_long_texts(config.get_text_config(), max_model_len or 0, "hf_compat=True")
    flags = ForkFlags(hf_compat=not is_upstream)
    setting = EngineSetting(flags, dtype, remote_code=remote_code)
    return examine_elsewhere(Task(config, setting, max_model_len or sys.maxsize, True))


def _is_path(model: str) -> bool:
    """Whether a name cannot be one on the Hub, which are NAME and OWNER/NAME."""
    return model.startswith((".", "/", "~")) or model.count("/") > 1


def show_definition(answer: Answer, dtype: str, console: Console) -> None:
    """Print the modules and the finding.

    Args:
        answer: of `compare_definition`.
        dtype: that it was asked for.
        console: to print to.
    """
    if answer.modules:
        table = Table(title="modules of a small random model, float32, one text")
        for name in ("module", "relative difference", "bits"):
            table.add_column(name, justify="right" if name == "relative difference" else "left")
        for one in answer.modules:
            style = "bold red" if one.is_other else ""
            bits = "equal" if one.is_equal else ""
            table.add_row(escape(one.name), f"{one.difference:.1e}", bits, style=style)
        console.print(table)
    compared = answer.finding.dtype or dtype
    console.print(escape(f"In {compared}: {answer.finding}."))
