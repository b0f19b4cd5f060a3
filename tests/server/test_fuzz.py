"""Whatever a body holds, the server answers it or refuses it, and goes on answering like HF."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.server.witness import Canary, failures_of, post
from tests.sizes import size
from vllm.hf_compat.server.body import GenerationFields

pytestmark = pytest.mark.fast

NUM_BODIES = size(300, 10_000)
NUM_EXTREMES = size(150, 2254)  # all of them

HF_NAMES = sorted(GenerationFields.model_fields)
UPSTREAM_NAMES = [
    "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed", "n", "max_tokens",
    "logprobs", "top_logprobs", "prompt_logprobs", "echo", "stop", "stop_token_ids", "ignore_eos",
    "min_tokens", "presence_penalty", "frequency_penalty", "logit_bias", "length_penalty",
    "allowed_token_ids", "bad_words", "stream", "stream_options", "use_beam_search", "suffix",
    "skip_special_tokens", "include_stop_str_in_output", "return_token_ids", "vllm_xargs",
    "truncate_prompt_tokens", "priority", "best_of", "user", "max_completion_tokens", "prompt",
    "messages", "response_format", "structured_outputs", "add_special_tokens", "model",
    "kv_transfer_params", "ec_transfer_params", "cache_salt", "repetition_detection",
]  # fmt: skip

Draw = Callable[[random.Random], Any]


def small_float(rng: random.Random) -> float:
    return round(rng.uniform(0.05, 2.5), 3)


def fraction(rng: random.Random) -> float:
    return round(rng.uniform(0.01, 1.0), 3)


def token(rng: random.Random) -> int:
    return rng.randrange(4096)


def tokens(rng: random.Random) -> list[int]:
    return [token(rng) for _ in range(rng.randrange(1, 5))]


def sequences(rng: random.Random) -> list[list[int]]:
    return [tokens(rng) for _ in range(rng.randrange(1, 5))]


def count(rng: random.Random) -> int:
    return rng.randrange(1, 7)


def flag(rng: random.Random) -> bool:
    return rng.random() < 0.5


# Values that a field may well have; all other fields get junk only.
LIKELY: dict[str, Draw] = {
    "max_new_tokens": count,
    "max_length": lambda rng: rng.randrange(1, 24),
    "min_new_tokens": count,
    "min_length": lambda rng: rng.randrange(24),
    "eos_token_id": lambda rng: rng.choice([token, tokens])(rng),
    "do_sample": flag,
    "num_return_sequences": count,
    "num_beams": count,
    "early_stopping": flag,
    "top_h": fraction,
    "typical_p": fraction,
    "epsilon_cutoff": lambda rng: fraction(rng) / 50,
    "eta_cutoff": lambda rng: fraction(rng) / 50,
    "encoder_repetition_penalty": small_float,
    "no_repeat_ngram_size": count,
    "encoder_no_repeat_ngram_size": count,
    "bad_words_ids": sequences,
    "sequence_bias": lambda rng: [[ids, rng.uniform(-9, 9)] for ids in sequences(rng)],
    "suppress_tokens": tokens,
    "begin_suppress_tokens": tokens,
    "forced_bos_token_id": token,
    "forced_eos_token_id": lambda rng: rng.choice([token, tokens])(rng),
    "exponential_decay_length_penalty": lambda rng: [count(rng), small_float(rng)],
    "renormalize_logits": flag,
    "remove_invalid_values": flag,
    "watermarking_config": lambda rng: {"bias": small_float(rng), "context_width": count(rng)},
    "guidance_scale": small_float,
    "negative_prompt_ids": tokens,
    "token_healing": flag,
    "temperature": small_float,
    "top_k": lambda rng: rng.randrange(-1, 60),
    "top_p": fraction,
    "min_p": fraction,
    "repetition_penalty": small_float,
    "seed": token,
    "n": count,
    "logprobs": lambda rng: rng.choice([True, 2]),
    "top_logprobs": count,
    "echo": flag,
    "stop": lambda rng: rng.choice([" ", ["\n", "a"]]),
    "stop_token_ids": tokens,
    "ignore_eos": flag,
    "min_tokens": count,
    "stream": flag,
    "logit_bias": lambda rng: {str(token(rng)): 5.0},
    "allowed_token_ids": tokens,
    "return_token_ids": flag,
    "structured_outputs": lambda rng: rng.choice(GRAMMARS),
    "stop_strings": lambda rng: rng.choice(["self", ["\n", "\u00e9", "ab" * 500], "\U0001f600"]),
    "max_time": lambda rng: rng.choice([0.0, 0.01, 5.0]),
}

SPECIAL_KEYS = ["grammar", "regex", "json", "choice", "kv_transfer_params", "hf_compat", "pickled"]
JUNK: list[Draw] = [
    lambda rng: rng.choice([0, -1, 1, 2, 3, 7, 100, 4095, 4096, -4096]),
    lambda rng: rng.choice([1, -1]) * rng.choice([2**31, 2**32, 2**62, 2**63, 2**64, 10**30]),
    lambda rng: rng.choice([0.0, -0.0, 0.5, 1.0, 1.5, -1.5, 1e-300, 1e300, 5e-324]),
    lambda rng: rng.choice([float("nan"), float("inf"), float("-inf")]),
    lambda rng: rng.choice([True, False, None]),
    lambda rng: rng.choice(
        ["", "1", "true", "never", "\0", "\U0001f600", "\ud800", "\u202e", "nan"]
    ),
    lambda rng: "x" * rng.randrange(5000),
    lambda rng: rng.choice([[], [[]], [[[]]], {}, [{}], [None], [[None]], [[[], 1.0]]]),
    lambda rng: [junk(rng) for _ in range(rng.randrange(4))],
    lambda rng: {rng.choice(["", "bias", "type", "5", "\u00e9"]): junk(rng) for _ in range(2)},
    lambda rng: [rng.choice([0, -1, 4095, 4096, 2**40, 2**63 - 1]) for _ in range(3)],
    lambda rng: [[[rng.choice([0, -1, 4096])], rng.choice([1.0, float("nan"), float("-inf")])]],
    lambda rng: [rng.choice([0, -1, 3, 2**62]), rng.choice([0.0, -2.0, 1e300, float("nan")])],
    lambda rng: {
        rng.choice(["bias", "greenlist_ratio", "hashing_key", "context_width"]): junk(rng)
    },
    lambda rng: nested(rng.randrange(80)),
    lambda rng: [rng.choice([0, 5, 4095])] * rng.choice([1000, 100_000]),
    lambda rng: [[5, 6]] * rng.choice([1000, 50_000]),
    lambda rng: ["ab"] * rng.choice([3, 60, 5000]),
    lambda rng: {rng.choice(SPECIAL_KEYS): junk(rng)},
]
GRAMMARS: list[dict[str, Any]] = [
    {"grammar": 'root ::= root "a"'},
    {"grammar": 'root ::= "b" x\nx ::= x'},
    {"grammar": "root ::= ("},
    {"grammar": 'root ::= [a-z]* " " root | "."'},
    {"regex": "(a|b)*c"},
    {"regex": "[z-a]"},
    {"json": {"$ref": "#"}},
    {"json": {"type": "object", "properties": {"a": {"type": "integer"}}}},
    {"choice": []},
    {"choice": ["a", "ab", ""]},
]


def junk(rng: random.Random) -> Any:
    return rng.choice(JUNK)(rng)


def nested(depth: int) -> Any:
    return [nested(depth - 1)] if depth else {}


PATHS = ["/v1/completions"] * 4 + ["/v1/chat/completions"] * 2 + ["/invocations"]
PATHS += ["/v1/chat/completions/batch", "/inference/v1/generate"]


def body(rng: random.Random) -> tuple[str, bytes]:
    """Return a path and what is sent there: a short request, spoilt or not."""
    path = rng.choice(PATHS)
    text = rng.choice(["def f(", "x", "import os\n", "\u00e9\U0001f600"])
    chat = [{"role": "user", "content": text}]
    junk_share = rng.choice([0.0, 0.0, 0.1, 0.5])
    known = sorted(LIKELY) if junk_share == 0.0 else HF_NAMES + UPSTREAM_NAMES
    fields: dict[str, Any] = {}
    for name in rng.sample(known, rng.randrange(7)):
        likely = LIKELY.get(name)
        fields[name] = junk(rng) if not likely or rng.random() < junk_share else likely(rng)
    if not {"max_new_tokens", "max_length", "max_completion_tokens"} & set(fields):
        fields.setdefault("max_tokens", 6)
    start: dict[str, Any] = {"model": "tiny"}
    if "chat" in path:
        start["messages"] = [chat, chat] if path.endswith("batch") else chat
    elif path.startswith("/inference"):
        hf = {name: fields.pop(name) for name in list(fields) if name in HF_NAMES}
        fields = {
            "token_ids": [5, 6],
            "sampling_params": {**fields, "extra_args": {"generation_config": hf}},
        }
    else:
        start["prompt"] = text
    data = json.dumps(start | fields).encode()
    if rng.random() < 0.02:
        data = data[: rng.randrange(len(data))]
    return path, data


# Numbers that a field may have by its type, and hardly by its meaning.
EXTREMES: list[Any] = [
    0, -1, 1, 2, 2**31 - 1, 2**31, -(2**31), 2**63 - 1, -(2**63), 2**63, 10**30,
    0.0, -0.0, 1.0, -1.0, 0.5, 5e-324, 1e-30, 1e30, 1e300,
    float("inf"), float("-inf"), float("nan"),
]  # fmt: skip
NUMERIC = [
    "max_new_tokens", "max_length", "min_new_tokens", "min_length", "max_time", "eos_token_id",
    "num_return_sequences", "num_beams", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff",
    "encoder_repetition_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size",
    "forced_bos_token_id", "forced_eos_token_id", "guidance_scale", "prompt_lookup_num_tokens",
    "assistant_early_exit", "penalty_alpha", "num_beam_groups", "diversity_penalty",
    "length_penalty", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed", "n",
    "max_tokens", "logprobs", "prompt_logprobs", "min_tokens", "presence_penalty",
    "frequency_penalty", "truncate_prompt_tokens", "priority",
]  # fmt: skip
IN_LISTS: dict[str, Callable[[Any], Any]] = {
    "sequence_bias": lambda number: [[[5], number], [[6, 7], number]],
    "bad_words_ids": lambda number: [[number], [5, number]],
    "suppress_tokens": lambda number: [number, 5],
    "begin_suppress_tokens": lambda number: [number, 5],
    "exponential_decay_length_penalty": lambda number: [1, number],
    "watermarking_config": lambda number: {"bias": number},
    "negative_prompt_ids": lambda number: [number],
    "logit_bias": lambda number: {"5": number},
    "stop_token_ids": lambda number: [number],
    "allowed_token_ids": lambda number: [number, 5],
}
"""Fields that have numbers inside."""


def extreme_bodies() -> list[bytes]:
    """Return each field with each number, sampled and greedily, for two tokens at most."""
    fields = [{name: number} for name in NUMERIC for number in EXTREMES]
    fields += [{name: make(number)} for name, make in IN_LISTS.items() for number in EXTREMES]
    start = {"model": "tiny", "prompt": "def f("}
    return [
        json.dumps({**start, "do_sample": do_sample, **limit_of(one), **one}).encode()
        for one in fields
        for do_sample in (False, True)
    ]


def limit_of(fields: dict[str, Any]) -> dict[str, int]:
    return {} if {"max_tokens", "max_length"} & fields.keys() else {"max_new_tokens": 2}


def failure(address: str, path: str, data: bytes) -> str | None:
    """Send a body, and read the answer to its end; return what is wrong with it."""
    status, answer = post(address, path, data)
    text = answer.decode(errors="replace")
    if status == 200 and '"error"' not in text:
        return None
    reason = re.search(r'"message": ?"((?:[^"\\]|\\.)*)"', text)
    code = re.search(r'"code": ?(\d+)', text)
    is_refusal = 400 <= status < 500 or (status == 200 and code and code[1].startswith("4"))
    if is_refusal and reason and reason[1]:
        return None
    return f"{path} {data[:1000]!r}\n  {status} {answer[-500:]!r}"


def test_no_body_is_a_server_error(server: str, canary: Canary) -> None:
    failures = failures_of(
        lambda seed: failure(server, *body(random.Random(seed))), range(NUM_BODIES), server, canary
    )
    assert not failures, "\n".join(failures[:20])


def test_no_number_is_a_server_error(server: str, canary: Canary) -> None:
    """Extreme values in every field that has numbers, one at a time."""
    bodies = random.Random(0).sample(extreme_bodies(), NUM_EXTREMES)
    failures = failures_of(
        lambda data: failure(server, "/v1/completions", data), bodies, server, canary
    )
    assert not failures, "\n".join(failures[:20])
