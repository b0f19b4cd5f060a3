"""The likely cause of a difference, and the flag that removes it."""

from __future__ import annotations

from vllm.parity.differences import Comparison
from vllm.parity.setting import Setting

_ATTENTION = ("attn", "attention", "o_proj", "out_proj", "c_proj", "dense")
_OPERATIONS = (
    (("qkv_proj", "gate_up_proj"), "a fused projection rounds differently", "split_qkv=True"),
    (("norm",), "the norm adds the residual before it rounds", "hf_compat=True"),
    (_ATTENTION, "attention adds in another order", "hf_compat=True"),
    (("mlp", "fc1", "fc2"), "a matrix product of a batch adds in another order", "hf_compat=True"),
)
_REMEDY = {"upstream": "hf_compat=True", "hf_compat": 'hf_compat="exact"'}


def likely_cause(
    setting: Setting, mode: str, comparisons: list[Comparison], operation: str | None
) -> str | None:
    """Return one sentence, or None if the answers are equal.

    Args:
        setting: what was compared.
        mode: of the engine.
        comparisons: of all prompts.
        operation: the first that differs (`drift.first_different_operation`).
    """
    different = [one for one in comparisons if one.first_difference is not None]
    if not different:
        return None
    if mode == "exact":
        return "None is known: please report it with this page."
    if mode == "deterministic":
        return (
            "deterministic=True has an arithmetic of its own, the same on every machine: "
            'hf_compat="exact" has that of Transformers on this one.'
        )
    rules = setting.generation or {}
    if mode == "upstream" and setting.dtype == "float32" and rules:
        names = ", ".join(sorted(rules))
        return f"vLLM's rules for {names} are not generate()'s: hf_compat=True has them."
    cause, flag = _of_operation(operation)
    if mode == "hf_compat" or not flag:
        flag = _REMEDY[mode]
    if setting.dtype == "float32":
        gap = min(_gap(one) for one in different)
        return f"Two tokens were {gap:.1e} apart, and {cause}: {flag} removes it."
    return f"In {setting.dtype}, {cause}: {flag} removes it."


def _of_operation(operation: str | None) -> tuple[str, str]:
    for parts, cause, flag in _OPERATIONS:
        if operation is not None and any(part in operation for part in parts):
            return f"{cause} ({operation})", flag
    return "a matrix product of a batch adds in another order than one of a request alone", ""


def _gap(comparison: Comparison) -> float:
    """Return how far apart Hugging Face's probabilities of the two chosen tokens are."""
    chosen = [one.probability_a or 0.0 for one in comparison.candidates if one.chosen_by]
    return max(chosen, default=0.0) - min(chosen, default=0.0)
