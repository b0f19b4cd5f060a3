"""The training script: what it reads, what a window looks like, and that it reproduces itself."""

import math
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from tools import python_corpus
from tools import train_tiny_llama as script

SMOKE = script.Recipe(
    vocab_size=384,
    hidden_size=64,
    intermediate_size=64,
    num_layers=2,
    num_heads=2,
    num_kv_heads=1,
    head_dim=32,
    context=32,
    batch_size=4,
    steps=30,
    warmup_steps=2,
    max_documents=12,
)


@pytest.fixture(scope="module")
def documents() -> Any:
    return python_corpus.read_documents()


@pytest.fixture(scope="module")
def smoke_tokenizer(documents: Any) -> PreTrainedTokenizerFast:
    return script.train_tokenizer((document.text for document in documents[:12]), 384)


def test_corpus_is_sorted_and_free_of_tests(documents: Any) -> None:
    names = [document.name for document in documents]
    assert names == sorted(names)
    assert {"os.py", "json/decoder.py", "asyncio/base_events.py"} <= set(names)
    assert not [name for name in names if "test" in name.split("/")[:-1]]
    assert not [name for name in names if name.startswith(("site-packages", "idlelib", "lib2to3"))]
    assert not [name for name in names if name.startswith("_sysconfigdata")]


@pytest.mark.parametrize(
    ("name", "used"),
    [
        ("os.py", True),
        ("xml/dom/minidom.py", True),
        ("unittest/case.py", True),
        ("unittest/test/test_case.py", False),
        ("test/test_os.py", False),
        ("encodings/cp037.py", False),
        ("html/entities.py", False),
        ("sitecustomize.py", False),
        ("site-packages/numpy/__init__.py", False),
        ("_sysconfigdata__linux_x86_64-linux-gnu.py", False),
    ],
)
def test_is_corpus_file(name: str, used: bool) -> None:
    assert python_corpus.is_corpus_file(name) is used


def test_held_out_modules_are_not_trained_on(documents: Any) -> None:
    train, held_out = python_corpus.split_held_out(documents)
    assert tuple(document.name for document in held_out) == python_corpus.HELD_OUT
    assert not {document.name for document in train} & set(python_corpus.HELD_OUT)
    assert len(train) + len(held_out) == len(documents)


def test_corpus_digest_depends_on_names_texts_and_order() -> None:
    a, b = python_corpus.Document("a.py", "x"), python_corpus.Document("b.py", "y")
    digests = {
        python_corpus.corpus_sha256([a, b]),
        python_corpus.corpus_sha256([b, a]),
        python_corpus.corpus_sha256([a, replace(b, text="z")]),
        python_corpus.corpus_sha256([a, replace(b, name="c.py")]),
    }
    assert len(digests) == 4


def test_empty_root_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no standard library sources"):
        python_corpus.read_documents(tmp_path)


def test_stream_marks_line_starts(smoke_tokenizer: PreTrainedTokenizerFast) -> None:
    document = python_corpus.Document("a.py", "import os\nx = 1\n\ny = 2\n")
    stream = script.tokenize_corpus(smoke_tokenizer, [document])
    assert stream.tokens[0] == smoke_tokenizer.bos_token_id
    assert stream.tokens[-1] == smoke_tokenizer.eos_token_id
    rests = [smoke_tokenizer.decode(stream.tokens[start:-1]) for start in stream.line_starts]
    assert rests == ["import os\nx = 1\n\ny = 2\n", "x = 1\n\ny = 2\n", "y = 2\n", ""]


def test_windows_begin_with_bos_and_a_whole_line(
    smoke_tokenizer: PreTrainedTokenizerFast, documents: Any
) -> None:
    stream = script.tokenize_corpus(smoke_tokenizer, documents[:3])
    windows = script.sample_batch(stream, SMOKE, torch.Generator().manual_seed(1))
    assert windows.shape == (SMOKE.batch_size, SMOKE.context + 1)
    assert (windows[:, 0] == smoke_tokenizer.bos_token_id).all()
    text = "\n" + "\n".join(document.text for document in documents[:3])
    for window in windows:
        ids = window[1:].tolist()
        if smoke_tokenizer.eos_token_id in ids:
            ids = ids[: ids.index(smoke_tokenizer.eos_token_id)]
        assert "\n" + smoke_tokenizer.decode(ids).rstrip("\ufffd") in text


def test_learning_rate_rises_then_falls_to_zero() -> None:
    recipe = script.Recipe(steps=100, warmup_steps=10)
    factors = [script.learning_rate_factor(step, recipe) for step in range(101)]
    assert factors[9] == factors[10] == 1.0
    assert factors[:10] == sorted(factors[:10])
    assert factors[10:] == sorted(factors[10:], reverse=True)
    assert factors[100] == pytest.approx(0.0, abs=1e-12)


def digest(folder: Path) -> dict[str, str]:
    """Digests of every file of ``folder`` but the card, which states a duration."""
    paths = sorted(path for path in folder.iterdir() if path.name != "README.md")
    return {path.name: sha256(path.read_bytes()).hexdigest() for path in paths}


@pytest.fixture(scope="module")
def smoke_runs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Three short runs: twice the same recipe, then another seed."""
    root = tmp_path_factory.mktemp("runs")
    recipes = {"first": SMOKE, "second": SMOKE, "other": replace(SMOKE, seed=1)}
    return {
        name: (root / name, script.run(recipe, root / name, progress=False))
        for name, recipe in recipes.items()
    }


def test_same_recipe_gives_the_same_bytes(smoke_runs: Any) -> None:
    assert digest(smoke_runs["first"][0]) == digest(smoke_runs["second"][0])


def test_another_seed_gives_other_weights(smoke_runs: Any) -> None:
    first, other = digest(smoke_runs["first"][0]), digest(smoke_runs["other"][0])
    assert first["model.safetensors"] != other["model.safetensors"]
    assert first["tokenizer.json"] == other["tokenizer.json"]


def test_training_lowers_the_loss(smoke_runs: Any) -> None:
    outcome = smoke_runs["first"][1]
    assert outcome.held_out_loss < math.log(SMOKE.vocab_size) - 0.5


def test_stored_model_has_the_measured_loss(smoke_runs: Any, documents: Any) -> None:
    """The card speaks of the weights on disk, after their rounding."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder, outcome = smoke_runs["first"]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    held_out = python_corpus.split_held_out(documents)[1]
    loss = script.held_out_loss(model, tokenizer, held_out, SMOKE.context)
    assert loss == pytest.approx(outcome.held_out_loss, abs=1e-5)


def test_held_out_loss_needs_text(smoke_tokenizer: PreTrainedTokenizerFast) -> None:
    model = script.build_model(SMOKE)
    with pytest.raises(ValueError, match="no document has 32 tokens"):
        script.held_out_loss(
            model, smoke_tokenizer, [python_corpus.Document("a.py", "x = 1\n")], 32
        )
