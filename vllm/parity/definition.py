"""``vllm parity twin``: how vLLM's definition of a model compares with Transformers'."""

from __future__ import annotations

import json
import sys

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from transformers import AutoConfig

from vllm.fork.flags.fork_flags import ForkFlags
from vllm.hf_layers.definition.configuration import own_classes
from vllm.hf_layers.definition.finding import Finding
from vllm.hf_layers.engine.exact_models import RULES
from vllm.hf_layers.engine.unlike_models import check_long_texts
from vllm.parity.machine import machine
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
    try:
        with own_classes():
            config = AutoConfig.from_pretrained(model, trust_remote_code=remote_code)
    except (OSError, KeyError) as error:
        raise ValueError(f"{model} has no configuration: {str(error).splitlines()[0]}") from None
    if not is_upstream:
        check_long_texts(config.get_text_config(), max_model_len or 0, "hf_compat=True")
    flags = ForkFlags(hf_compat=not is_upstream)
    setting = EngineSetting(flags, dtype, remote_code=remote_code)
    return examine_elsewhere(Task(config, setting, max_model_len or sys.maxsize, True))


def show_definition(answer: Answer, dtype: str, is_upstream: bool, console: Console) -> None:
    """Print the modules and the finding.

    Args:
        answer: of `compare_definition`.
        dtype: that it was asked for.
        is_upstream: likewise.
        console: to print to.
    """
    if answer.modules:
        table = Table(title="modules of a small random model, float32, its longest text as a whole")
        for name in ("module", "relative difference", "bits"):
            table.add_column(name, justify="right" if name == "relative difference" else "left")
        for one in answer.modules:
            style = "bold red" if one.is_other else ""
            bits = "equal" if one.is_equal else ""
            table.add_row(escape(one.name), f"{one.difference:.1e}", bits, style=style)
        console.print(table)
    finding = answer.finding
    place = "" if finding.agreement == "differs" else f"In {dtype}: "
    console.print(escape(f"{place}{finding}."))
    if finding.agreement == "differs" and not is_upstream:
        console.print(escape(f"Use {_remedy(finding)}."))


def _remedy(finding: Finding) -> str:
    """Return with which arguments an engine starts."""
    shorter = f"max_model_len={finding.agrees_up_to}, with which they agree, "
    others = f'hf_compat="exact", or {RULES}'
    return f"{shorter}{others}" if finding.agrees_up_to else others


def definition_as_json(
    answer: Answer, model: str, dtype: str, is_upstream: bool, max_model_len: int | None
) -> str:
    """Return an answer, and what it is the answer to."""
    asked = {
        "model": model,
        "dtype": dtype,
        "upstream": is_upstream,
        "max_model_len": max_model_len,
        "machine": machine(),
    }
    return json.dumps(asked | json.loads(answer.as_json()), indent=1)
