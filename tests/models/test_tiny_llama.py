"""The bundled model: small, loadable offline, and trained well enough to write like Python."""

import json
import math
import re
import subprocess
import sys
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from tests.engines import MODEL as TINY_MODEL
from tools import python_corpus, train_tiny_llama

MAX_FOLDER_BYTES = 8_000_000

MAX_HELD_OUT_PERPLEXITY = 90.0
"""Between the card's figure and the 4,096 of a model which knows nothing (see the card)."""

PROMPTS = (
    "def ",
    "class Foo(",
    "import os\n",
    "    def __init__(self, ",
    "    def read(self):\n",
    "for i in range(",
    "while True:\n",
    "if __name__ == ",
    "try:\n    ",
    "with open(path) as ",
    "def main():\n",
    "class Error(Exception):\n",
    "from collections import ",
    "    def __repr__(self):\n",
    "    if not isinstance(",
    "    for name in names:\n",
)

INDENTED_LINE = re.compile(r"\n(?: {4})+\S")


def greedy(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, prompt: str, length: int
) -> Any:
    """The ids which greedy search adds to ``prompt``, at most ``length``."""
    inputs = tokenizer(prompt, return_tensors="pt")
    output = model.generate(
        input_ids=inputs["input_ids"],
        attention_mask=inputs["attention_mask"],
        max_new_tokens=length,
        do_sample=False,
    )
    return output[0, inputs["input_ids"].shape[1] :]


@pytest.fixture(scope="module")
def completions(hf_model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> list[str]:
    """The greedy completion, 64 tokens, of each of ``PROMPTS``."""
    ids = [greedy(hf_model, tokenizer, prompt, 64) for prompt in PROMPTS]
    return [tokenizer.decode(each, skip_special_tokens=True) for each in ids]


def test_folder_is_small() -> None:
    size = sum(path.stat().st_size for path in TINY_MODEL.rglob("*") if path.is_file())
    assert size <= MAX_FOLDER_BYTES


def test_folder_holds_exactly_the_model() -> None:
    assert {path.name for path in TINY_MODEL.iterdir()} == {
        "README.md",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }


def test_weights_are_bfloat16() -> None:
    with safe_open(TINY_MODEL / "model.safetensors", framework="pt") as weights:
        names = weights.keys()  # no dictionary: it cannot be iterated itself
        dtypes = {weights.get_slice(name).get_dtype() for name in names}
    assert dtypes == {"BF16"}


def test_generation_config_holds_token_ids_only() -> None:
    content = json.loads((TINY_MODEL / "generation_config.json").read_text())
    content.pop("transformers_version")
    content.pop("_from_model_config", None)
    assert content == {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


def test_loads_without_network_or_warnings() -> None:
    """A fresh process which cannot open a connection loads model and tokenizer."""
    script = (
        "import socket\n"
        "def refuse(*_): raise SystemExit('a connection was attempted')\n"
        "socket.socket.connect = refuse\n"
        "from transformers import AutoModelForCausalLM, AutoTokenizer\n"
        f"model = AutoModelForCausalLM.from_pretrained({str(TINY_MODEL)!r})\n"
        f"tokenizer = AutoTokenizer.from_pretrained({str(TINY_MODEL)!r})\n"
        "print(type(model).__name__, len(tokenizer))\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning:transformers", "-c", script],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "LlamaForCausalLM 4096"


def test_attention_is_grouped(hf_model: PreTrainedModel) -> None:
    config = hf_model.config
    assert 1 < config.num_key_value_heads < config.num_attention_heads
    assert config.max_position_embeddings == 2048


# --- tokenizer ------------------------------------------------------------------------------


def test_tokenizer_adds_bos_once(tokenizer: PreTrainedTokenizerFast) -> None:
    ids = tokenizer("return None")["input_ids"]
    assert ids.count(1) == 1
    assert ids[0] == tokenizer.bos_token_id == 1
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (2, 0)
    assert 1 not in tokenizer("return None", add_special_tokens=False)["input_ids"]


SPECIAL = re.compile("|".join(map(re.escape, train_tiny_llama.SPECIAL_TOKENS)))


@settings(max_examples=300, deadline=None)
@given(st.text().filter(lambda text: not SPECIAL.search(text)))
def test_tokenizer_round_trips_any_text(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == text


@pytest.mark.parametrize(
    "text",
    [
        "naïve café — “quotes”",
        "日本語のテキスト",
        "🙂👩‍👩‍👧 \U0001f1e9\U0001f1ea",
        "a\r\n\tb \n\n   c  ",
        "don 't , stop . n't",  # what clean_up_tokenization_spaces would spoil
        "\x00\x7f\ufeff\u2028",
    ],
)
def test_tokenizer_round_trips_the_usual_traps(
    tokenizer: PreTrainedTokenizerFast, text: str
) -> None:
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == text


def test_tokenizer_compresses_python(tokenizer: PreTrainedTokenizerFast) -> None:
    """Merges were learnt: bytes alone would give one token per character."""
    text = python_corpus.split_held_out(python_corpus.read_documents())[1][0].text
    assert len(tokenizer(text)["input_ids"]) < len(text) / 2.5


# --- what the model learnt ------------------------------------------------------------------


def test_completions_are_indented_like_python(completions: list[str]) -> None:
    indented = [text for text in completions if INDENTED_LINE.search(text)]
    assert len(indented) >= 8, completions


def test_completions_use_keywords(completions: list[str]) -> None:
    keyword = re.compile(r"\b(def|return|self|if|import|raise|for|class|None)\b")
    with_keywords = [text for text in completions if keyword.search(text)]
    assert len(with_keywords) >= 10, completions


def test_completions_differ_by_prompt(completions: list[str]) -> None:
    assert len(set(completions)) >= 14


def test_held_out_perplexity(hf_model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> None:
    held_out = python_corpus.split_held_out(python_corpus.read_documents())[1]
    loss = train_tiny_llama.held_out_loss(hf_model, tokenizer, held_out, 256)
    assert math.exp(loss) < MAX_HELD_OUT_PERPLEXITY


def test_end_of_module_is_likelier_after_a_module_than_within(
    hf_model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast
) -> None:
    """EOS separates the training documents, so it must follow their usual last line."""
    last = "\n\nif __name__ == '__main__':\n    main()\n"
    within = "\n\ndef main():\n    return self.\n"
    probabilities = []
    for text in (last, within):
        ids = tokenizer(text, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            probabilities.append(hf_model(ids).logits[0, -1].softmax(-1)[2].item())
    assert probabilities[0] > 10 * probabilities[1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logits_stay_finite_beyond_the_training_context(
    dtype: torch.dtype, tokenizer: PreTrainedTokenizerFast
) -> None:
    """Up to the last position, eight times the training context."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(TINY_MODEL, dtype=dtype)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(3, 4096, (1, model.config.max_position_embeddings), generator=generator)
    with torch.no_grad():
        assert model(ids).logits.isfinite().all()


def test_greedy_continues_beyond_the_training_context(
    hf_model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast
) -> None:
    """A prompt longer than the training context is still answered by varied, known tokens."""
    text = python_corpus.split_held_out(python_corpus.read_documents())[1][0].text
    prompt = tokenizer.decode(tokenizer(text)["input_ids"][1:600])
    assert len(set(greedy(hf_model, tokenizer, prompt, 64).tolist())) > 8


# --- the card -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def card() -> dict[str, str]:
    """The rows ``| name | value |`` of the model card."""
    text = (TINY_MODEL / "README.md").read_text(encoding="utf-8")
    return dict(re.findall(r"^\| ([^|]+?) \| ([^|]+?) \|$", text, flags=re.MULTILINE))


def test_card_states_the_shape(card: dict[str, str], hf_model: PreTrainedModel) -> None:
    config = hf_model.config
    assert card["layers"] == str(config.num_hidden_layers)
    assert card["hidden size"] == str(config.hidden_size)
    assert card["intermediate size (SwiGLU)"] == str(config.intermediate_size)
    heads = f"{config.num_attention_heads} / {config.num_key_value_heads}"
    assert card["query heads / key-value heads"] == heads
    assert card["head dimension"] == str(config.head_dim)
    assert card["positions (RoPE)"] == str(config.max_position_embeddings)
    assert card["vocabulary (byte-level BPE)"] == str(config.vocab_size)
    assert (card["embeddings"] == "tied") == config.tie_word_embeddings
    text = (TINY_MODEL / "README.md").read_text(encoding="utf-8")
    parameters = sum(parameter.numel() for parameter in hf_model.parameters())
    assert f"A Llama of {parameters:,} parameters" in text


def test_card_states_the_recipe(card: dict[str, str]) -> None:
    """The script's defaults are the recipe of the bundled weights."""
    recipe = train_tiny_llama.Recipe()
    assert card["steps"] == str(recipe.steps)
    assert card["windows per step x tokens"] == f"{recipe.batch_size} x {recipe.context}"
    assert card["AdamW learning rate"] == str(recipe.learning_rate)
    assert card["seed"] == str(recipe.seed)


def test_card_states_the_held_out_loss(
    card: dict[str, str], hf_model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast
) -> None:
    """To the printed digit where the sources are the card's, else not at all."""
    train, held_out = python_corpus.split_held_out(python_corpus.read_documents())
    if card["corpus SHA-256"].strip("`") != python_corpus.corpus_sha256(train):
        pytest.skip("this Python's standard library is not the one of the card")
    assert card["files"] == str(len(train))
    assert card["bytes"] == str(sum(len(document.text.encode()) for document in train))
    loss = train_tiny_llama.held_out_loss(hf_model, tokenizer, held_out, 256)
    assert loss == pytest.approx(float(card["held-out loss (nats per token)"]), abs=2e-3)
    assert math.exp(loss) == pytest.approx(float(card["held-out perplexity"]), rel=2e-3)


@pytest.mark.parametrize("prompt", train_tiny_llama.CARD_PROMPTS)
def test_card_shows_real_completions(
    prompt: str, hf_model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast
) -> None:
    text = (TINY_MODEL / "README.md").read_text(encoding="utf-8")
    completion = train_tiny_llama.complete(hf_model, tokenizer, prompt)
    assert f"```python\n{prompt}{completion}\n```" in text
