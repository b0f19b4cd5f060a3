"""``vllm serve --deterministic`` under many clients, some of which hang up."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from tests.server.conftest import running_server

NUM_TOKENS = 16


@pytest.fixture(scope="module")
def deterministic_client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    folder = tmp_path_factory.mktemp("server")
    flags = ["--deterministic", "--dtype", "bfloat16", "--max-num-batched-tokens", "192"]
    with running_server(folder, *flags, "--max-num-seqs", "32") as address:
        yield openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)


def complete(client: openai.OpenAI, prompt: list[int], **extra: Any) -> tuple[Any, ...]:
    """Return token ids, and the logprobs of all tokens that were likely, as they are sent."""
    response = client.completions.create(
        model="tiny",
        prompt=prompt,
        max_tokens=NUM_TOKENS,
        logprobs=5,
        extra_body={"ignore_eos": True, "return_token_ids": True, **extra},
    )
    choice: Any = response.choices[0]
    return (
        choice.to_dict()["token_ids"],
        choice.logprobs.token_logprobs,
        choice.logprobs.top_logprobs,
    )


def hang_up(client: openai.OpenAI, prompt: list[int]) -> None:
    stream = client.completions.create(model="tiny", prompt=prompt, max_tokens=200, stream=True)
    next(iter(stream))
    stream.close()


@pytest.mark.parametrize("extra", [{"temperature": 0}, {"temperature": 1.0, "seed": 5}], ids=str)
def test_32_clients_at_once_and_one_alone(
    deterministic_client: openai.OpenAI, prompts: list[list[int]], extra: dict[str, Any]
) -> None:
    client = deterministic_client
    with ThreadPoolExecutor(32) as pool:
        gone = [pool.submit(hang_up, client, prompt) for prompt in prompts[:8]]
        answers = list(pool.map(lambda prompt: complete(client, prompt, **extra), prompts))
        for one in gone:
            one.result()
    alone = [complete(client, prompt, **extra) for prompt in prompts[::4]]
    assert answers[::4] == alone
    assert all(len(token_ids) == NUM_TOKENS for token_ids, *_ in answers)


@pytest.mark.parametrize("name", ["top_k", "stream_interval", "seed", "max_tokens", "min_tokens"])
@pytest.mark.parametrize("number", [1 << 64, -(1 << 63) - 1], ids=["2^64", "-2^63-1"])
def test_integers_beyond_64_bits_are_bad_requests(
    deterministic_client: openai.OpenAI, name: str, number: int
) -> None:
    """Upstream's server answers 500 to some: no message to the engine holds them."""
    fields: dict[str, Any] = {"max_tokens": 1, "temperature": 1.0, name: number}
    with pytest.raises(openai.BadRequestError, match=name):
        deterministic_client.completions.create(model="tiny", prompt="x", extra_body=fields)


@pytest.mark.parametrize("token_id", [4096, 1 << 70])
def test_a_token_that_the_model_does_not_have(
    deterministic_client: openai.OpenAI, token_id: int
) -> None:
    with pytest.raises(openai.BadRequestError, match=rf"Token id {token_id} is not in 0\.\.4095,"):
        deterministic_client.completions.create(model="tiny", prompt=[5, token_id], max_tokens=1)
