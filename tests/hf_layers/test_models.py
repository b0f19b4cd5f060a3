"""The rows of types of models, and the modules that they name."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import pytest
from transformers import AutoConfig, LlamaConfig

from tests.engines import ROOT
from vllm.hf_layers import definition
from vllm.hf_layers.models import ROWS, ModelFacts, facts_of, values_of

NAMED = {facts.definition for facts in ROWS.values()} - {""}


def of_types() -> set[str]:
    """The modules that mend one type of models."""
    names = [one.name for one in iter_modules(definition.__path__)]
    modules = [(name, vars(import_module(f"{definition.__name__}.{name}"))) for name in names]
    return {name for name, module in modules if "mend" in module or "configure" in module}


def test_rows_name_all_modules_that_mend_a_type() -> None:
    assert of_types() == NAMED


@pytest.mark.parametrize("model_type", ROWS)
def test_a_row_is_of_a_type_that_transformers_has(model_type: str) -> None:
    assert facts_of(AutoConfig.for_model(model_type)) is ROWS[model_type] != ModelFacts()


def test_a_type_without_a_row_has_the_layers_of_all() -> None:
    assert facts_of(LlamaConfig()) == ModelFacts()


@pytest.mark.parametrize("model_type", [name for name, row in ROWS.items() if row.implied])
def test_implied_fields_are_those_that_transformers_leaves_out(model_type: str) -> None:
    config = AutoConfig.for_model(model_type)
    found = values_of(ROWS[model_type].implied, config)
    assert found
    assert not [name for name in found if getattr(config, name, None) not in (None, found[name])]


def compared_types(path: Path) -> Iterator[str]:
    """Where a module asks for the type of a model by its name."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            names = {getattr(one, "attr", getattr(one, "id", None)) for one in sides}
            if "model_type" in names:
                yield f"{path.relative_to(ROOT)}:{node.lineno}"


def test_no_other_file_asks_for_the_type_of_a_model() -> None:
    found = [place for path in (ROOT / "vllm").rglob("*.py") for place in compared_types(path)]
    assert not found, "say it in the row of the type, in vllm/hf_layers/models.py"
