"""A report as tables in a terminal."""

from __future__ import annotations

from rich.console import Console, JustifyMethod
from rich.markup import escape
from rich.table import Table

from vllm.parity.differences import percent
from vllm.parity.drift import LOGITS, LayerDrift
from vllm.parity.recordings import Parting, RecordingsCompared, distances, fact, summary
from vllm.parity.report import Report, Run

MAX_DIFFERENCES = 3
"""First differences that are shown of a run; the JSON has all."""


def show(report: Report, console: Console) -> None:
    """Print a report."""
    console.print(_summary(report))
    for run in report.runs:
        for i, comparison in enumerate(run.comparisons):
            if comparison.first_difference is not None and i in _shown(run):
                console.print(_candidates(report, run, i))
    for dtype in report.hf_drift:
        console.print(_drift(report, dtype))
    for run in report.runs:
        if run.cause:
            console.print(f"[bold]{run.name}[/bold]: {escape(run.cause)}")


def show_recordings(compared: RecordingsCompared, console: Console) -> None:
    """Print what two recordings have in common, and where each answer parts that does."""
    table = Table()
    table.add_column("differs", justify="left")
    table.add_column("A", overflow="fold")
    table.add_column("B", overflow="fold")
    for name, pair in compared.facts.items():
        table.add_row(escape(name), *(escape(fact(one)) for one in pair))
    if compared.facts:
        console.print(table)
    for one in compared.partings:
        prompt = one.text.encode("unicode_escape").decode()
        title = f"prompt {one.prompt}, token {one.step} after {prompt:.60}"
        console.print(f"\n[bold]{escape(title)}[/bold]\n{distances(one)}")
        console.print(_parting(one, compared.token_texts))
    for line in summary(compared):
        console.print(line)


def _parting(one: Parting, texts: dict[int, str]) -> Table:
    """Return the candidates; `<` stands by those that were chosen."""
    table = Table()
    for name in ("id", "token", "A", "B"):
        table.add_column(name, justify="left" if name == "token" else "right")
    for found in one.candidates:
        table.add_row(
            str(found.token_id),
            escape(repr(texts[found.token_id])),
            percent(found.probability_a) + (" <" if found.chosen_by == "a" else "  "),
            percent(found.probability_b) + (" <" if found.chosen_by == "b" else "  "),
            style={"a": "green", "b": "red"}.get(found.chosen_by, ""),
        )
    return table


def _summary(report: Report) -> Table:
    setting = report.setting
    rules = "".join(f", {name}={value}" for name, value in (setting.generation or {}).items())
    title = (
        f"{setting.model}: {len(setting.prompts)} prompts x {setting.max_new_tokens} tokens{rules}"
    )
    table = Table(title=escape(title))
    for name in ("engine", "dtype", "answers equal", "logits with equal bits", "largest difference",
                 "first to differ"):  # fmt: skip
        justify: JustifyMethod = "left" if name in ("engine", "dtype") else "right"
        table.add_column(name, justify=justify, overflow="fold")
    for run in report.runs:
        table.add_row(
            run.mode,
            run.dtype,
            f"{run.num_equal} of {len(run.comparisons)}",
            f"{run.share_of_bits:.2%}",
            f"{run.max_difference:.2g}",
            run.first_to_differ,
        )
    return table


def _shown(run: Run) -> list[int]:
    different = [i for i, one in enumerate(run.comparisons) if one.first_difference is not None]
    return different[:MAX_DIFFERENCES]


def _candidates(report: Report, run: Run, index: int) -> Table:
    comparison = run.comparisons[index]
    prompt = report.setting.prompts[index].encode("unicode_escape").decode()
    title = f"{run.name}: token {comparison.first_difference} after {prompt:.40}"
    table = Table(title=escape(title))
    for name in ("id", "token", "Hugging Face", "this vLLM"):
        table.add_column(name, justify="left" if name == "token" else "right")
    for one in comparison.candidates:
        style = {"a": "green", "b": "red"}.get(one.chosen_by, "")
        table.add_row(
            str(one.token_id),
            escape(repr(report.token_texts[one.token_id])),
            percent(one.probability_a) + (" <" if one.chosen_by == "a" else "  "),
            percent(one.probability_b) + (" <" if one.chosen_by == "b" else "  "),
            style=style,
        )
    return table


def _drift(report: Report, dtype: str) -> Table:
    """Hugging Face with a KV cache or padding from itself, and each engine from Hugging Face."""
    lines = report.drift_lines(dtype)
    table = Table(title=f"drift of hidden states in {dtype}: largest (mean)")
    table.add_column("layer", justify="right")
    for name in lines:
        table.add_column(name, justify="right")
    num_layers = max(map(len, lines.values())) - 1
    for i in range(num_layers + 1):
        cells = [_cell(line[i]) if i < len(line) else "" for line in lines.values()]
        table.add_row(str(i) if i < num_layers else LOGITS, *cells)
    return table


def _cell(drift: LayerDrift) -> str:
    return "0" if drift.has_equal_bits else f"{drift.maximum:.2g} ({drift.mean:.1g})"
