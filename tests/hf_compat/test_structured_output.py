"""Structured output beside HF's processors: the grammar holds, and the tokens are HF's under it.

vLLM forbids tokens in the model's raw logits, before its sampler; HF has no processor for that and
would put a custom one after its own. So on HF's side the same grammar forbids the tokens where
vLLM does, in the logits that the model returns, and `generate()` goes on from there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import xgrammar
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from tests.hf_compat.test_parity import as_prompts, token_ids
from tests.reference import generate, prompt_ids
from vllm import SamplingParams
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.structured_output.utils import choice_as_grammar

if TYPE_CHECKING:
    from vllm import LLM

WORDS = r"[a-z]{2,9}( [a-z]{2,9}){2,6}\."
CHOICES = ["read the file", "return None", "raise an error", "return the value"]
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[a-z_]{3,9}$"},
        "count": {"type": "integer", "minimum": 0, "maximum": 999},
        "kind": {"enum": ["list", "dict", "str"]},
    },
    "required": ["name", "count", "kind"],
    "additionalProperties": False,
}
STRUCTURES: dict[str, dict[str, Any]] = {
    "regex": {"regex": WORDS},
    "choice": {"choice": CHOICES},
    "json": {"json": SCHEMA},
}
FIELDS: list[dict[str, Any]] = [
    {},
    {"repetition_penalty": 1.2},
    {"no_repeat_ngram_size": 4},
    {"do_sample": True, "temperature": 0.9, "top_k": 20},
    {"do_sample": True, "top_p": 0.9, "repetition_penalty": 1.1, "no_repeat_ngram_size": 5},
]


@pytest.fixture(scope="module")
def compiler(tokenizer: PreTrainedTokenizerBase, engine: LLM) -> xgrammar.GrammarCompiler:
    vocab_size = engine.llm_engine.model_config.get_vocab_size()
    info = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=vocab_size)
    return xgrammar.GrammarCompiler(info)


def compiled(compiler: xgrammar.GrammarCompiler, structure: str) -> xgrammar.CompiledGrammar:
    """The grammar that vLLM's xgrammar backend makes of `structure`."""
    if structure == "regex":
        return compiler.compile_regex(WORDS)
    if structure == "choice":
        return compiler.compile_grammar(choice_as_grammar(CHOICES))
    return compiler.compile_json_schema(json.dumps(SCHEMA))


def is_complete(structure: str, text: str) -> bool:
    """Whether `text` is one of the answers that `structure` allows."""
    if structure == "regex":
        return re.fullmatch(WORDS, text) is not None
    if structure == "choice":
        return text in CHOICES
    value = json.loads(text)
    return set(value) == set(SCHEMA["required"]) and value["kind"] in ("list", "dict", "str")


def forbid_in_logits(grammar: xgrammar.CompiledGrammar, eos: int) -> Callable[..., None]:
    """Return a forward hook that forbids in a model's logits what `grammar` does not allow."""
    matcher = xgrammar.GrammarMatcher(grammar, override_stop_tokens=[eos])
    bitmask = xgrammar.allocate_token_bitmask(1, grammar.tokenizer_info.vocab_size)
    is_first = True

    def hook(module: Any, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        nonlocal is_first
        if not is_first:  # the model reads the token that was chosen
            assert matcher.accept_token(int(kwargs["input_ids"][0, -1]))
        is_first = False
        matcher.fill_next_token_bitmask(bitmask)
        xgrammar.apply_token_bitmask_inplace(output.logits[:, -1], bitmask)

    return hook


def generate_under(
    grammar: xgrammar.CompiledGrammar,
    model: PreTrainedModel,
    prompt: list[int],
    config: GenerationConfig,
) -> list[int]:
    """`generate()` with the tokens that `grammar` does not allow forbidden in the raw logits."""
    eos = model.generation_config.eos_token_id
    assert isinstance(eos, int)
    handle = model.register_forward_hook(forbid_in_logits(grammar, eos), with_kwargs=True)
    try:
        return generate(model, prompt, config)
    finally:
        handle.remove()


def structured(engine: LLM, config: GenerationConfig, structure: str | None) -> SamplingParams:
    """A configuration as the engine takes it, with a structure."""
    params = engine.llm_engine.input_processor.hf_compat.to_sampling_params(config)
    if structure is not None:
        params.structured_outputs = StructuredOutputsParams(**STRUCTURES[structure])
    return params


@pytest.mark.some(3)
@pytest.mark.parametrize("fields", FIELDS, ids=lambda fields: "+".join(fields) or "greedy")
def test_structures_beside_processors(
    engine: LLM,
    hf_model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    compiler: xgrammar.GrammarCompiler,
    fields: dict[str, Any],
) -> None:
    """Each structure three times, and requests without one between them, in one batch."""
    prompts = prompt_ids(tokenizer, 12)
    structures = [*STRUCTURES, None] * 3
    configs = [GenerationConfig(max_new_tokens=64, seed=i, **fields) for i in range(len(prompts))]
    expected = [
        generate(hf_model, prompt, config)
        if structure is None
        else generate_under(compiled(compiler, structure), hf_model, prompt, config)
        for prompt, config, structure in zip(prompts, configs, structures, strict=True)
    ]
    params = [structured(engine, c, s) for c, s in zip(configs, structures, strict=True)]
    outputs = engine.generate(as_prompts(prompts), params, use_tqdm=False)
    assert token_ids(outputs) == expected
    for structure, output in zip(structures, outputs, strict=True):
        if structure is not None and output.outputs[0].finish_reason == "stop":
            assert is_complete(structure, output.outputs[0].text)
        else:  # JSON may contain any number of blanks
            assert structure in (None, "json")


def test_sampling_params_with_a_structure(
    engine: LLM,
    hf_model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    compiler: xgrammar.GrammarCompiler,
) -> None:
    prompt = prompt_ids(tokenizer, 3)[2]
    params = SamplingParams(
        temperature=0.8,
        top_k=30,
        seed=5,
        repetition_penalty=1.2,
        max_tokens=48,
        structured_outputs=StructuredOutputsParams(regex=WORDS),
    )
    config = GenerationConfig(
        do_sample=True,
        temperature=0.8,
        top_k=30,
        seed=5,
        repetition_penalty=1.2,
        max_new_tokens=48,
    )
    expected = generate_under(compiled(compiler, "regex"), hf_model, prompt, config)
    assert token_ids(engine.generate(as_prompts([prompt]), params, use_tqdm=False)) == [expected]
