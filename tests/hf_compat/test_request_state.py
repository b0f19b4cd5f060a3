"""What a request carries reaches every sequence of it, by every way into an engine."""

from __future__ import annotations

import asyncio
import copy
import pickle
import random
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest
import torch
from prometheus_client import REGISTRY
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.generation import StoppingCriteria

from tests.engines import MODEL
from tests.hf_compat.test_calls import OnlyEvenTokens
from tests.hf_compat.test_parity import as_prompts
from tests.reference import equal_to_the_end, generate, generate_batch
from vllm.hf_compat.call.generate_call import GenerateCall
from vllm.hf_compat.frontend import Frontend
from vllm.sampling_params import RequestOutputKind, SamplingParams

if TYPE_CHECKING:
    from vllm import LLM
    from vllm.v1.engine.async_llm import AsyncLLM

Rows = list[list[int]]
PADDING = {0, 2}


class EndsAtAThird(StoppingCriteria):
    """Ends a sequence after a token of every third id."""

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        return input_ids[:, -1] % 3 == 1


def depends_on_the_last(batch_id: int, input_ids: torch.Tensor) -> list[int]:
    return [i for i in range(4096) if i % 7 != int(input_ids[-1]) % 7]


FIELDS: dict[str, Callable[[], dict[str, Any]]] = {
    "stop_strings": lambda: {"stop_strings": ["self", "(", " i", "n", "\n"]},
    "max_time": lambda: {"max_time": 0.0},
    "stopping_criteria": lambda: {"stopping_criteria": [EndsAtAThird()]},
    "logits_processor": lambda: {"logits_processor": [OnlyEvenTokens()]},
    "prefix": lambda: {"prefix_allowed_tokens_fn": depends_on_the_last},
    "all": lambda: {
        "stop_strings": "n",
        "stopping_criteria": [EndsAtAThird()],
        "logits_processor": [OnlyEvenTokens()],
        "repetition_penalty": 1.3,
        "eos_token_id": [2, 14],
    },
}
FORMS: dict[str, dict[str, Any]] = {
    "one": {},
    "several": {"do_sample": True, "num_return_sequences": 3, "seed": 7},
    "beams": {"num_beams": 3, "num_return_sequences": 2},
}
ALL = [(field, form) for field in FIELDS for form in FORMS]


def arguments_of(field: str, form: str) -> dict[str, Any]:
    return {"max_new_tokens": 12, **FORMS[form], **FIELDS[field]()}


def of_hf(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, rows: Rows, **arguments: Any
) -> Rows:
    if "stop_strings" in arguments:
        arguments["tokenizer"] = tokenizer
    return generate_batch(model, rows, pad=model.generation_config.pad_token_id, **arguments)


def assert_equal(answers: Rows, expected: Rows, name: str) -> None:
    assert len(answers) == len(expected), name
    for tokens, row in zip(answers, expected, strict=True):
        assert tokens, name
        assert equal_to_the_end(tokens, row, PADDING), (name, tokens, row)


@pytest.fixture(scope="module")
def prompt(prompts: Rows) -> list[int]:
    return prompts[1]


@pytest.fixture(scope="module")
def expected(
    hf_model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompt: list[int]
) -> dict[tuple[str, str], Rows]:
    return {pair: of_hf(hf_model, tokenizer, [prompt], **arguments_of(*pair)) for pair in ALL}


def params_of(frontend: Frontend | None, field: str, form: str) -> SamplingParams:
    assert frontend is not None
    return frontend.to_sampling_params(GenerateCall().updated(arguments_of(field, form)))


def through_msgspec(params: SamplingParams) -> SamplingParams:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=type(params))


WAYS: dict[str, Callable[[SamplingParams], SamplingParams]] = {
    "itself": lambda params: params,
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda params: pickle.loads(pickle.dumps(params)),
    "msgspec": through_msgspec,
}


def test_each_way_of_copying(
    engine: LLM, prompt: list[int], expected: dict[tuple[str, str], Rows]
) -> None:
    """Every field in every form, copied in every way, all in one batch."""
    frontend = engine.input_processor.hf_compat
    cases = [(pair, way) for pair in ALL for way in WAYS]
    params = [WAYS[way](params_of(frontend, *pair)) for pair, way in cases]
    outputs = engine.generate(as_prompts([prompt] * len(cases)), params, use_tqdm=False)
    for (pair, way), output in zip(cases, outputs, strict=True):
        answers = [list(one.token_ids) for one in output.outputs]
        assert_equal(answers, expected[pair], f"{pair} {way}")


def test_these_fields_change_the_answer(
    hf_model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompt: list[int],
    expected: dict[tuple[str, str], Rows],
) -> None:
    for form, fields in FORMS.items():
        plain = of_hf(hf_model, tokenizer, [prompt], max_new_tokens=12, **fields)
        for field in FIELDS:
            assert expected[field, form] != plain, (field, form)


def test_params_that_are_finished_keep_it_through_copies(engine: LLM, prompt: list[int]) -> None:
    """As the parent of several sequences copies them, and the client sends them."""
    frontend = engine.input_processor.hf_compat
    assert frontend is not None
    for pair in ALL:
        params = params_of(frontend, *pair).clone()
        frontend.finish(params, len(prompt))
        params.n = 1  # a sequence's
        for way, copied in WAYS.items():
            assert copied(params).extra_args == params.extra_args, (pair, way)
        sent = msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams)
        assert sent.extra_args == params.extra_args


@pytest.mark.parametrize("field", ["stop_strings", "max_time", "stopping_criteria", "prefix"])
def test_as_batch(
    engine: LLM,
    hf_model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Rows,
    field: str,
) -> None:
    rows = [prompt[:6] for prompt in prompts[1:4]]
    arguments = arguments_of(field, "several")
    outputs = engine.generate(as_prompts(rows), use_tqdm=False, as_batch=True, **arguments)
    answers = [list(one.token_ids) for output in outputs for one in output.outputs]
    assert_equal(answers, of_hf(hf_model, tokenizer, rows, **arguments), field)


# --- asynchronous clients ------------------------------------------------------------------------
@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.fixture(scope="module")
def client(loop: asyncio.AbstractEventLoop) -> Iterator[AsyncLLM]:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    args = AsyncEngineArgs(
        str(MODEL),
        dtype="float32",
        hf_compat=True,
        max_model_len=256,
        enforce_eager=True,
        kv_cache_memory_bytes=1 << 28,
    )

    async def start() -> AsyncLLM:
        return AsyncLLM.from_engine_args(args)

    engine = loop.run_until_complete(start())
    yield engine
    engine.shutdown()


async def streamed(
    client: AsyncLLM, prompt: list[int], params: SamplingParams, request_id: str
) -> Rows:
    """Return the sequences of a request, put together if they come in parts."""
    rows: dict[int, list[int]] = {}
    is_delta = params.output_kind == RequestOutputKind.DELTA
    async for output in client.generate({"prompt_token_ids": prompt}, params, request_id):
        for one in output.outputs:
            before = rows.get(one.index, []) if is_delta else []
            rows[one.index] = [*before, *one.token_ids]
    return [rows[index] for index in sorted(rows)]


def test_asynchronous_clients(
    loop: asyncio.AbstractEventLoop,
    client: AsyncLLM,
    prompt: list[int],
    expected: dict[tuple[str, str], Rows],
) -> None:
    """Every field in every form, as a whole and as a stream, all at once."""
    kinds = (RequestOutputKind.FINAL_ONLY, RequestOutputKind.CUMULATIVE, RequestOutputKind.DELTA)
    cases = [
        (pair, kind)
        for pair in ALL
        for kind in kinds
        if pair[1] != "beams" or kind is not RequestOutputKind.DELTA
    ]

    async def ask() -> list[Rows]:
        requests = []
        for i, (pair, kind) in enumerate(cases):
            params = params_of(client.input_processor.hf_compat, *pair)
            params.output_kind = kind
            requests.append(streamed(client, prompt, params, str(i)))
        return await asyncio.gather(*requests)

    for (pair, kind), answers in zip(cases, loop.run_until_complete(ask()), strict=True):
        assert_equal(answers, expected[pair], f"{pair} {kind}")


GIVEN_UP: list[dict[str, Any]] = [
    {},
    {"num_beams": 3, "num_return_sequences": 2},
    {"guidance_scale": 1.5, "negative_prompt_ids": [5, 6]},
    {"do_sample": True, "num_return_sequences": 3, "seed": 7},
    {"num_beams": 2, "guidance_scale": 1.2},
    {"stop_strings": ["never seen"], "stopping_criteria": [EndsAtAThird()]},
]
"""What a request has when nobody waits for its answer any more."""


def test_clients_that_give_up_leave_nothing(
    loop: asyncio.AbstractEventLoop, client: AsyncLLM, hf_model: PreTrainedModel, prompt: list[int]
) -> None:
    """Tasks are cancelled, or requests aborted, at any moment; the others' answers stay HF's."""
    rng = random.Random(0)
    frontend = client.input_processor.hf_compat
    plain = frontend.to_sampling_params(GenerationConfig(max_new_tokens=40))

    async def give_up(number: int) -> None:
        fields = dict(GIVEN_UP[number % len(GIVEN_UP)])
        call = GenerateCall().updated({"max_new_tokens": 100, **fields})
        params, name = frontend.to_sampling_params(call), f"given-up-{number}"
        task = asyncio.create_task(streamed(client, prompt, params, name))
        await asyncio.sleep(rng.choice([0, 0.001, 0.05, 0.3]))
        if rng.random() < 0.5:
            task.cancel()
        else:
            await client.abort(name)
        await asyncio.wait([task], timeout=60)
        assert task.done()

    async def ask() -> list[Rows]:
        stays = [streamed(client, prompt, plain.clone(), f"stays-{i}") for i in range(4)]
        found = asyncio.gather(*stays)
        await asyncio.gather(*map(give_up, range(10 * len(GIVEN_UP))))
        return [*await found, await streamed(client, prompt, plain.clone(), "afterwards")]

    expected = [generate(hf_model, prompt, GenerationConfig(max_new_tokens=40))]
    assert loop.run_until_complete(ask()) == [expected] * 5
    assert not client.output_processor.request_states
    assert held() == dict.fromkeys(HELD, 0.0)


HELD = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")


def held() -> dict[str, float]:
    """Return what the last step of the engines of this process left."""
    return {
        name: max(
            sample.value
            for metric in REGISTRY.collect()
            for sample in metric.samples
            if sample.name == name
        )
        for name in HELD
    }


@pytest.mark.parametrize("is_slow", [False, True], ids=["fast", "slow"])
def test_logits_of_parts(
    loop: asyncio.AbstractEventLoop,
    client: AsyncLLM,
    hf_model: PreTrainedModel,
    prompt: list[int],
    is_slow: bool,
) -> None:
    """Each part has the rows of its own tokens, also where vLLM joins those that wait."""
    config = GenerationConfig(max_new_tokens=12, output_logits=True, output_scores=True)
    given = client.input_processor.hf_compat.to_sampling_params(config)
    given.output_kind = RequestOutputKind.DELTA

    async def parts() -> list[Any]:
        found = []
        async for output in client.generate({"prompt_token_ids": prompt}, given, f"p{is_slow}"):
            found.append(output.outputs[0])
            await asyncio.sleep(0.2 if is_slow else 0)
        return found

    found = loop.run_until_complete(parts())
    tokens = [token for part in found for token in part.token_ids]
    assert all(len(part.logits) == len(part.scores) == len(part.token_ids) for part in found)
    assert any(len(part.token_ids) > 1 for part in found) == is_slow
    expected = hf_model.generate(
        torch.tensor([prompt]), config, return_dict_in_generate=True, do_sample=False
    )
    assert tokens == expected.sequences[0, len(prompt) :].tolist()
    for name in ("logits", "scores"):
        ours = torch.from_numpy(np.concatenate([getattr(part, name) for part in found]))
        theirs = torch.cat(getattr(expected, name))
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)  # float32 layers


def test_a_configuration_instead_of_parameters(
    loop: asyncio.AbstractEventLoop, client: AsyncLLM, hf_model: PreTrainedModel, prompt: list[int]
) -> None:
    config = GenerationConfig(max_new_tokens=9, repetition_penalty=1.3)
    given: Any = config

    async def last() -> list[int]:
        async for output in client.generate({"prompt_token_ids": prompt}, given, "config"):
            found = output
        return list(found.outputs[0].token_ids)

    assert loop.run_until_complete(last()) == generate(hf_model, prompt, config)
