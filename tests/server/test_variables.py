"""A server whose command line says nothing of hf_compat, and whose environment does."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from tests.reference import generate, prompt_texts
from tests.server.conftest import Server, start_server, wait_until_healthy


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    flags = ["--dtype", "float32", "--max-num-beams", "2"]
    folder = tmp_path_factory.mktemp("server")
    variables = {"VLLM_HF_COMPAT": "1", "VLLM_LOGGING_LEVEL": "INFO"}
    server = start_server(folder, *flags, **variables)
    try:
        wait_until_healthy(server)
        yield server
    finally:
        server.process.terminate()
        server.process.wait(timeout=60)


@pytest.fixture
def client(started: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{started.address}/v1", api_key="none", max_retries=0)


def test_it_answers_as_hugging_face(
    client: openai.OpenAI, hf_model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> None:
    text = prompt_texts(1)[0]
    fields = {"max_new_tokens": 24, "num_beams": 2, "no_repeat_ngram_size": 3}
    expected = generate(hf_model, tokenizer(text)["input_ids"], GenerationConfig(**fields))
    body = {**fields, "return_token_ids": True}
    answer = client.completions.create(model="tiny", prompt=text, extra_body=body).choices[0]
    assert answer.token_ids == expected  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("field", "reason"),
    [({"num_beam": 2}, "did you mean num_beams"), ({"num_beams": 3}, "--max-num-beams")],
)
def test_bodies_have_the_checks_of_the_flag(
    client: openai.OpenAI, field: dict[str, int], reason: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=reason):
        client.completions.create(model="tiny", prompt="def f(", extra_body=field)


def test_its_log_says_so_once(started: Server) -> None:
    log = started.log.read_text()
    sentence = "hf_compat=True, as the environment variable VLLM_HF_COMPAT says: no argument says"
    assert log.count(sentence) == 1
    assert "Unknown vLLM environment variable" not in log
