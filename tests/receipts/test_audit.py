"""Audits by a real engine, of answers that other engines gave, and of forged ones."""

from __future__ import annotations

import copy
import json
import random
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GenerationConfig

from tests.engines import MODEL, bundled_engine
from tests.receipts.forgeries import FORGERS, Honest, forge, made_anew
from tests.reference import prompt_texts
from tests.server.conftest import CHAT_TEMPLATE, running_server
from tests.server.witness import post
from vllm.receipts.audit import audit, engine_arguments
from vllm.receipts.file import Claim, check_form, claims_of

if TYPE_CHECKING:
    from vllm import LLM

pytestmark = pytest.mark.long

NUM_FORGERIES = 5000
ENGINE: dict[str, Any] = {
    "dtype": "bfloat16", "deterministic": True, "receipts": True, "max_model_len": 512,
    "max_num_batched_tokens": 512, "kv_cache_memory_bytes": 1 << 28,
}  # fmt: skip
KINDS: list[dict[str, Any]] = [
    {},
    {"do_sample": True, "temperature": 1.2},
    {"do_sample": True, "top_k": 20, "top_p": 0.9, "num_return_sequences": 2},
    {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2},
    {"stop_strings": ["\n", "return"]},
    {"min_new_tokens": 12, "sequence_bias": [[[5], 2.0], [[7, 8], -3.0]]},
    {"exponential_decay_length_penalty": (5, 1.5), "max_new_tokens": 150},
]


def answers(llm: LLM) -> list[Honest]:
    """Return the answers of an engine to prompts of all kinds, in one batch."""
    configs = [
        GenerationConfig(**{"max_new_tokens": 24, "seed": 5 + i, **KINDS[i % len(KINDS)]})
        for i in range(21)
    ]
    texts = [text[:300] for text in prompt_texts(len(configs))]
    return [
        Honest(one.receipt, one.logits_digests, one.text)
        for output in llm.generate(texts, configs, use_tqdm=False)
        for one in output.outputs
    ]


@pytest.fixture(scope="module")
def honest() -> list[Honest]:
    with bundled_engine(**ENGINE) as llm:
        return answers(llm)


@pytest.fixture(scope="module")
def auditor(honest: list[Honest]) -> Iterator[LLM]:
    """An engine that audits, on another instruction set."""
    arguments = engine_arguments(honest[0].receipt)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_FORK_CPU_ISA", "avx2")
        with bundled_engine(**arguments, kv_cache_memory_bytes=1 << 28) as llm:
            yield llm


def as_claims(honest: list[Honest]) -> list[Claim]:
    return [Claim(f"answer {i}", one.receipt, texts=(one.text,)) for i, one in enumerate(honest)]


def test_answers_are_what_their_receipts_say(auditor: LLM, honest: list[Honest]) -> None:
    assert {one.receipt["finish"][0] for one in honest} == {"stop", "length"}
    verdicts = list(audit(auditor, as_claims(honest)))
    assert [one.sentence for one in verdicts] == [
        f"equal, {len(one.receipt['output'])} tokens" for one in honest
    ]


def test_an_audit_is_a_prefill(auditor: LLM, honest: list[Honest]) -> None:
    """An answer of 24 tokens takes a step for its prompt and one for all of its tokens."""
    steps = _number_of_steps(auditor)
    assert not next(audit(auditor, as_claims(honest[:1]))).differs
    assert len(honest[0].receipt["output"]) == 24
    assert _number_of_steps(auditor) - steps <= 2


def test_two_ranks_make_the_same_receipts(honest: list[Honest]) -> None:
    with bundled_engine(**ENGINE, tensor_parallel_size=2) as llm:
        assert [one.receipt for one in answers(llm)] == [one.receipt for one in honest]


NONSENSE: list[dict[str, Any]] = [
    {"hf": {"seed": "x"}},
    {"hf": {"pickled": "gA=="}},
    {"hf": {"row": 7, "num_rows": 2}},
    {"hf": {"num_rows": 1 << 40, "row": 1 << 39}},
    {"hf": {"fields": {"repetition_penalty": "a"}}},
    {"hf": {"fields": {"num_beams": 3}}},
    {"hf": {"nothing": 1}},
    {"vllm": {"max_tokens": None}},
    {"vllm": {"temperature": "hot"}},
    {"vllm": {"structured_outputs": {"regex": "("}}},
    {"vllm": {"stop": [1]}},
    {"vllm": {"_bad_words_token_ids": [[]]}},
    {"vllm": {"_bad_words_token_ids": [[4096]]}},
    {"vllm": {"_all_stop_token_ids": [1 << 31]}},
]


@pytest.mark.parametrize("change", NONSENSE, ids=str)
def test_parameters_that_are_none(
    auditor: LLM, honest: list[Honest], change: dict[str, dict[str, Any]]
) -> None:
    """Others are audited all the same."""
    receipt = copy.deepcopy(honest[0].receipt)
    for name, values in change.items():
        receipt["parameters"][name] |= values
    made_anew(receipt, honest[0].logits)
    claims = [Claim("bad", receipt), Claim("good", honest[0].receipt)]
    assert [one.differs for one in audit(auditor, claims)] == ["parameters", ""]


def _number_of_steps(llm: LLM) -> int:
    (metric,) = [one for one in llm.get_metrics() if one.name == "vllm:iteration_tokens_total"]
    return int(metric.count)


def test_forgeries_are_found(auditor: LLM, honest: list[Honest]) -> None:
    rng = random.Random(0)
    forgeries = [forge(rng, honest, i) for i in range(NUM_FORGERIES)]
    claims = []
    for i, forgery in enumerate(forgeries):
        problem = ""
        try:
            check_form(forgery.receipt)
        except ValueError as error:
            problem = str(error)
        receipt = None if problem else forgery.receipt
        claims.append(Claim(str(i), receipt, problem, (forgery.text,)))
    verdicts = list(audit(auditor, claims))
    assert [one.differs for one in verdicts] == [forgery.differs for forgery in forgeries]
    assert min(Counter(i % len(FORGERS) for i in range(NUM_FORGERIES)).values()) >= 20


def test_one_bit_of_the_weights(auditor: LLM, honest: list[Honest], tmp_path: Path) -> None:
    """Answers of a model with one other bit are found, also where they pass for the other's."""
    folder = shutil.copytree(MODEL, tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    weight = tensors["model.layers.3.mlp.up_proj.weight"].view(torch.int16)
    weight[17, 100] ^= 1 << 6
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with bundled_engine(**ENGINE, model=str(folder)) as llm:
        others = answers(llm)
    assert {one.differs for one in audit(auditor, as_claims(others))} == {"model"}
    first = [_first_difference(one, true) for one, true in zip(others, honest, strict=True)]
    for one in others:
        one.receipt["model"] = honest[0].receipt["model"]
        made_anew(one.receipt, one.logits)
    verdicts = list(audit(auditor, as_claims(others)))
    assert [(one.differs, one.token) for one in verdicts] == [
        ("logits", number) if number is not None else ("", None) for number in first
    ]
    assert sum(number is not None for number in first) > len(first) // 2


def _first_difference(one: Honest, other: Honest) -> int | None:
    """Return the first token of other logits; None if a bit of a weight did not reach any."""
    pairs = zip(one.logits, other.logits, strict=False)
    return next((i for i, (mine, theirs) in enumerate(pairs) if mine != theirs), None)


SERVED: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": ["def f(", "import "], "n": 2, "do_sample": True, "seed": 3}),
    ("/v1/completions", {"prompt": "def f(", "repetition_penalty": 1.3, "stop": ["zz"]}),
    (
        "/v1/completions",
        {"prompt": "x", "frequency_penalty": 0.7, "min_tokens": 9, "logprobs": 2, "echo": True},
    ),
    ("/v1/completions", {"prompt": "x", "structured_outputs": {"regex": "[a-z]{5,90}"}}),
    ("/v1/completions", {"prompt": "x", "structured_outputs": {"choice": ["yes", "no"]}}),
    ("/v1/completions", {"prompt": "def f(", "stop": ["="], "include_stop_str_in_output": True}),
    (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "x"}], "n": 2, "temperature": 1, "seed": 4},
    ),
    ("/v1/chat/completions/batch", {"messages": [[{"role": "user", "content": "a"}]] * 2}),
    ("/invocations", {"prompt": "def f("}),
]
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("/v1/completions", {"prompt": "x", "num_beams": 3}, "num_beams=3 has no receipt"),
    ("/v1/completions", {"prompt": "x", "do_sample": True}, "sampling without a seed has no"),
    ("/v1/completions", {"prompt": "x", "logit_bias": {"5": 3}}, "logit_bias has no receipt"),
    ("/v1/completions", {"prompt": "x", "guidance_scale": 2.0}, "guidance_scale has no receipt"),
    ("/v1/completions", {"prompt": "x", "max_time": 9.5}, "max_time has no receipt"),
    ("/v1/completions", {"prompt": "x", "stream": True}, "comes with a whole answer"),
    ("/v1/completions/render", {"prompt": "x"}, "answers nothing that could have a receipt"),
    ("/v1/responses", {"input": "x"}, "/v1/responses has no field 'receipt'"),
    ("/inference/v1/generate", {"token_ids": [5], "sampling_params": {}}, "has no field 'receipt'"),
]


def test_answers_of_a_server(auditor: LLM, tmp_path: Path) -> None:
    flags = ["--hf-compat", "--deterministic", "--receipts", "--dtype", "bfloat16"]
    flags += ["--enable-scale-out", "--chat-template", CHAT_TEMPLATE, "--max-model-len", "512"]
    file = tmp_path / "answers.jsonl"
    with running_server(tmp_path, *flags) as address, file.open("wb") as lines:
        for path, fields in SERVED:
            body = {"model": "tiny", "max_tokens": 70, "receipt": True, **fields}
            status, answer = post(address, path, json.dumps(body).encode())
            assert status == 200, answer
            lines.write(answer + b"\n")
            del body["receipt"]
            status, answer = post(address, path, json.dumps(body).encode())
            assert (status, b"receipt" in answer) == (200, False)
        for path, fields, sentence in REFUSED:
            body = {"model": "tiny", "receipt": True, **fields}
            status, answer = post(address, path, json.dumps(body).encode())
            assert (status, sentence in json.loads(answer)["error"]["message"]) == (400, True)
    verdicts = list(audit(auditor, claims_of(file)))
    assert [one.differs for one in verdicts] == [""] * 14
