"""Calls of `generate()`, answered by Transformers and by the engine in one run.

``make calls`` prints how many went which way, and every one that is not equal.
"""

from __future__ import annotations

import copy
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import (
    AutoModelForCausalLM,
    CompileConfig,
    GenerationConfig,
    PreTrainedModel,
    SynthIDTextWatermarkingConfig,
    WatermarkingConfig,
)
from transformers.generation import EosTokenCriteria, MaxLengthCriteria, MaxTimeCriteria

from tests.engines import MODEL, ROOT, bundled_engine
from tests.reference import equal_to_the_end
from tools.make_random_model import make_random_model
from vllm.exceptions import VLLMValidationError
from vllm.hf_compat.call.generate_call import params_of_call
from vllm.sampling_params import SamplingParams

if TYPE_CHECKING:
    from vllm import LLM

EQUAL, BOTH_REFUSE, REFUSED, DIFFER = "equal", "both refuse", "refused", "differ"

Arguments = dict[str, Any]

MODES: dict[str, Arguments] = {
    "greedy": {},
    "sampled": {"do_sample": True, "seed": 5},
    "beams": {"num_beams": 3},
    "beams sampled": {"num_beams": 2, "do_sample": True, "seed": 6},
}

# Fields that choose tokens, each in all modes.
IN_ALL_MODES: list[Arguments] = [
    {},
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 0.7},
    {"repetition_penalty": 1},
    {"repetition_penalty": 0.0},
    {"encoder_repetition_penalty": 1.5},
    {"no_repeat_ngram_size": 1},
    {"no_repeat_ngram_size": 2},
    {"no_repeat_ngram_size": -1},
    {"encoder_no_repeat_ngram_size": 1},
    {"bad_words_ids": [[14], [9, 11]]},
    {"bad_words_ids": []},
    {"bad_words_ids": [[]]},
    {"min_length": 12},
    {"min_new_tokens": 4, "eos_token_id": [14, 9, 11]},
    {"min_new_tokens": 100},
    {"forced_bos_token_id": 7},
    {"forced_eos_token_id": 7},
    {"forced_eos_token_id": [7, 9]},
    {"forced_eos_token_id": torch.tensor([7, 9])},
    {"remove_invalid_values": True},
    {"exponential_decay_length_penalty": (1, 1.5)},
    {"exponential_decay_length_penalty": [1, 1.5], "eos_token_id": None},
    {"exponential_decay_length_penalty": (1, 1e300), "min_new_tokens": 6},
    {"suppress_tokens": list(range(3, 99))},
    {"suppress_tokens": torch.tensor([14, 9, 11])},
    {"suppress_tokens": []},
    {"begin_suppress_tokens": list(range(3, 4096, 2))},
    {"sequence_bias": [[[14], -9.0], [[9, 11], 9.0]]},
    {"sequence_bias": {(14,): -9.0, (9, 11): 9.0}},
    {"renormalize_logits": True},
    {"guidance_scale": 1},
    {"watermarking_config": WatermarkingConfig(bias=4.0)},
    {"watermarking_config": {"bias": 4.0, "context_width": 2}},
    {"watermarking_config": SynthIDTextWatermarkingConfig(ngram_len=3, keys=[5, 6, 7])},
    {"eos_token_id": 14},
    {"eos_token_id": [14, 9, 11, 3]},
    {"eos_token_id": torch.tensor([14, 9])},
    {"eos_token_id": torch.tensor(14)},
    {"eos_token_id": -1},
    {"eos_token_id": []},
    {"eos_token_id": "x"},
    {"eos_token_id": None},
    {"pad_token_id": 5},
    {"pad_token_id": None},
    {"temperature": 0.5},
    {"temperature": 0.0},
    {"temperature": 2},
    {"top_k": 3},
    {"top_k": 0},
    {"top_k": 10**6},
    {"top_k": -1},
    {"top_k": None},
    {"top_p": 0.7},
    {"top_p": 0.0},
    {"top_p": 1.5},
    {"top_p": None},
    {"min_p": 0.1},
    {"min_p": -1.0},
    {"typical_p": 0.5},
    {"epsilon_cutoff": 0.01},
    {"eta_cutoff": 0.01},
    {"top_h": 0.4},
    {"temperature": 0.7, "top_k": 9, "top_p": 0.8, "min_p": 0.01, "typical_p": 0.9},
    {"max_new_tokens": 1},
    {"max_new_tokens": 0},
    {"max_new_tokens": "5"},
    {"max_new_tokens": None, "max_length": 12},
    {"max_new_tokens": None, "max_length": 3},
    {"max_new_tokens": None, "max_length": None},
    {"max_time": 100.0},
    {"max_time": 0.0},
    {"num_return_sequences": 2},
    {"num_return_sequences": 0},
    {"num_return_sequences": -1},
    {"num_return_sequences": 4},
    {"length_penalty": 2.0, "eos_token_id": [14, 9, 11]},
    {"length_penalty": -1.0, "eos_token_id": [14, 9, 11]},
    {"length_penalty": 0, "eos_token_id": [14, 9, 11]},
    {"length_penalty": 1e308},
    {"early_stopping": True, "eos_token_id": [14, 9, 11]},
    {"early_stopping": "never", "eos_token_id": [14, 9, 11]},
    {"early_stopping": "x"},
    {"suppress_tokens": list(range(4096))},
    {"repetition_penalty": np.float64(1.3)},
    {"suppress_tokens": np.array([35, 34])},
    {"bad_words_ids": [[np.int64(35)], [np.int64(34)]]},
    {"sequence_bias": {(np.int64(35),): -9.0, (np.int64(34),): -9.0}},
    {"sequence_bias": {35: -9.0}},
    {"pad_token_id": torch.tensor(5)},
    {"max_new_tokens": np.int64(4)},
    {"max_new_tokens": torch.tensor(4)},
    {"low_memory": True},
    {"penalty_alpha": 0.6},
    {"penalty_alpha": 0.6, "top_k": 1},
    {"use_cache": False},
    {"prompt_lookup_num_tokens": 3},
    {"stopping_criteria": [partial(MaxLengthCriteria, 10)]},
    {"stopping_criteria": [partial(MaxLengthCriteria, 15)]},
    {"stopping_criteria": [partial(MaxTimeCriteria, 100.0)], "max_time": 0.0},
    {"stopping_criteria": [partial(EosTokenCriteria, [14, 9, 2])]},
    {"stopping_criteria": [partial(EosTokenCriteria, [14])]},
]

# Fields and arguments that say how, each once or in the modes that they are for.
ONCE: list[Arguments] = [
    *({"cache_implementation": name} for name in ("dynamic", "static", "quantized", "hybrid")),
    *({"cache_implementation": name} for name in ("offloaded", "sliding_window", "no such")),
    {"cache_implementation": "offloaded_static"},
    {"cache_config": {"nbits": 4}},
    {"max_cache_len": 64},
    {"use_cache": True},
    {"use_cache": None},
    {"prefill_chunk_size": 2},
    {"prefill_chunk_size": 0},
    {"compile_config": CompileConfig()},
    {"compile_config": {}},
    {"disable_compile": True},
    {"num_beams": 0},
    {"num_beams": -1},
    {"num_beams": 1},
    {"num_beams": 2.0},
    {"num_beams": 3, "num_return_sequences": 3},
    {"num_beams": 3, "num_beam_groups": 3},
    {"num_beams": 3, "num_beam_groups": 3, "diversity_penalty": 0.5},
    {"num_beams": 3, "diversity_penalty": 0.5},
    {"num_beams": 3, "constraints": []},
    {"num_beams": 3, "force_words_ids": [[14]]},
    {"num_beams": 3, "prompt_lookup_num_tokens": 3},
    {"num_beams": 3, "penalty_alpha": 0.6, "top_k": 4},
    {"num_beams": 3, "streamer": None},
    {"diversity_penalty": 0.5},
    {"num_beam_groups": 2},
    {"penalty_alpha": 0.6, "top_k": 4},
    {"penalty_alpha": 0.6, "top_k": 4, "do_sample": True, "seed": 3},
    {"penalty_alpha": 0.0, "top_k": 4},
    {"dola_layers": "low"},
    {"dola_layers": [1]},
    {"token_healing": False},
    {"use_mtp": True},
    {"use_mtp": False},
    {"is_assistant": False},
    {"is_assistant": True},
    {"speculation_type": "dflash"},
    {"num_assistant_tokens": 3, "num_assistant_tokens_schedule": "heuristic"},
    {"assistant_confidence_threshold": 0.9},
    {"assistant_lookbehind": 3, "target_lookbehind": 3},
    {"assistant_ensemble_weight": 0.5},
    {"assistant_ensemble_weight": 1.5},
    *({"prompt_lookup_num_tokens": number} for number in (1, 5, 0, -1)),
    *({"prompt_lookup_num_tokens": 3, "max_matching_ngram_size": n} for n in (3, 0, -1)),
    {"prompt_lookup_num_tokens": 3, "use_cache": False},
    {"prompt_lookup_num_tokens": 3, "cache_implementation": "static"},
    {"prompt_lookup_num_tokens": 3, "guidance_scale": 1.5},
    {"prompt_lookup_num_tokens": 3, "assistant_ensemble_weight": 0.5},
    {"prompt_lookup_num_tokens": 3, "num_return_sequences": 2},
    {"prompt_lookup_num_tokens": 3, "repetition_penalty": 1.3, "no_repeat_ngram_size": 2},
    {"prompt_lookup_num_tokens": 3, "min_new_tokens": 4, "eos_token_id": [14, 9, 11]},
    {"prompt_lookup_num_tokens": 3, "forced_eos_token_id": 7, "eos_token_id": 7},
    {"prompt_lookup_num_tokens": 3, "watermarking_config": WatermarkingConfig(bias=4.0)},
    {
        "prompt_lookup_num_tokens": 3,
        "watermarking_config": SynthIDTextWatermarkingConfig(ngram_len=3, keys=[5, 6, 7]),
    },
    {"prompt_lookup_num_tokens": 3, "stopping_criteria": [partial(MaxLengthCriteria, 10)]},
    {"prompt_lookup_num_tokens": 3, "output_scores": True, "return_dict_in_generate": True},
    {"guidance_scale": 1.5},
    {"guidance_scale": 0},
    {"guidance_scale": -1.0},
    {"guidance_scale": 1.5, "do_sample": True, "seed": 8},
    {"guidance_scale": 1.5, "negative_prompt_ids": torch.tensor([[9, 11, 14]])},
    {
        "guidance_scale": 1.5,
        "negative_prompt_ids": torch.tensor([[9, 11, 14]]),
        "negative_prompt_attention_mask": torch.ones(1, 3, dtype=torch.int64),
    },
    {
        "guidance_scale": 1.5,
        "negative_prompt_ids": torch.tensor([[9, 11, 14]]),
        "negative_prompt_attention_mask": torch.tensor([[0, 1, 1]]),
    },
    {"guidance_scale": 1.5, "num_beams": 2},
    {"output_scores": True, "output_logits": True, "return_dict_in_generate": True},
    {"output_attentions": False, "output_hidden_states": False},
    {"streamer": None},
    {"synced_gpus": False},
    {"synced_gpus": None},
    {"trust_remote_code": False},
    {"assistant_model": None},
    {"assistant_tokenizer": None},
    {"tokenizer": None},
    {"custom_generate": None},
    {"negative_prompt_ids": None, "negative_prompt_attention_mask": None},
    {"logits_processor": None, "stopping_criteria": None, "prefix_allowed_tokens_fn": None},
    {"logits_processor": [], "stopping_criteria": []},
    {"prefix_allowed_tokens_fn": lambda batch_id, ids: [9, 11, 14]},
    {"attention_mask": torch.ones(1, 8, dtype=torch.int64)},
    {"attention_mask": None},
    {"no_such_argument": 3},
    {"no_such_argument": None},
    {"generation_config": GenerationConfig(max_new_tokens=4, repetition_penalty=1.3)},
    {"generation_config": GenerationConfig(top_k=3), "do_sample": True, "top_k": None, "seed": 1},
    {"bos_token_id": 3, "decoder_start_token_id": 4},
    *({"suppress_tokens": ids} for ids in ([np.int64(35)], [torch.tensor(35)], {35})),
    {"begin_suppress_tokens": np.array([35])},
    *({"forced_eos_token_id": ids} for ids in (np.int64(7), np.array([7]), [np.int64(7)])),
    {"pad_token_id": np.int64(5)},
    {"bad_words_ids": np.array([[35]])},
    {"min_length": np.int64(9)},
    {"min_new_tokens": torch.tensor(3)},
    {"repetition_penalty": np.float32(1.3)},
    {"repetition_penalty": torch.tensor(1.3)},
    {"repetition_penalty": 1e308},
    {"do_sample": True, "seed": -1},
    *({"do_sample": True, "seed": 1, name: np.float64(0.5)} for name in ("temperature", "top_p")),
    *({"do_sample": True, "seed": 1, name: np.float64(0.5)} for name in ("min_p", "typical_p")),
    {"do_sample": True, "seed": 1, "top_p": np.float32(0.5)},
    {"do_sample": True, "seed": 1, "top_k": np.int64(5)},
    {"num_beams": np.int64(2)},
    {"num_beams": 2, "early_stopping": np.bool_(True)},
    *({"max_new_tokens": number} for number in (2.5, 3.0, np.float64(2.5))),
    *({"max_new_tokens": None, "max_length": number} for number in ("12", 12.0, np.int64(12))),
]

NEVER_NONE = {"transformers_version", "_from_model_config"}
BASE: Arguments = {"max_new_tokens": 5}


def calls() -> Iterator[tuple[str, Arguments]]:
    """Yield each call with a name: all settings in their modes, and None for every field."""
    for fields in IN_ALL_MODES:
        for mode, arguments in MODES.items():
            yield f"{mode}: {fields}", {**BASE, **arguments, **fields}
    for fields in ONCE:
        yield str(fields), {**BASE, **fields}
    for name in GenerationConfig().to_dict().keys() - NEVER_NONE:
        for mode in ("greedy", "beams sampled"):
            yield f"{mode}: {name}=None", {**BASE, **MODES[mode], name: None}


@dataclass
class Outcome:
    """How a call went.

    Attributes:
        rows: new tokens of each sequence; None if it was refused or failed.
        reason: why.
        is_sentence: of a refusal, whether it is one that says so to a caller.
    """

    rows: list[list[int]] | None = None
    reason: str = ""
    is_sentence: bool = True


def fresh(arguments: Arguments) -> Arguments:
    """Return the arguments with objects of their own."""
    made = copy.deepcopy(arguments)
    if made.get("stopping_criteria"):
        made["stopping_criteria"] = [make() for make in made["stopping_criteria"]]
    return made


def of_transformers(model: PreTrainedModel, prompt: list[int], arguments: Arguments) -> Outcome:
    """Return what `generate()` does with a call; without a mask it would look for padding."""
    arguments = {
        "attention_mask": torch.ones(1, len(prompt), dtype=torch.int64),
        **fresh(arguments),
    }
    torch.manual_seed(arguments.pop("seed", 0))
    try:
        with warnings.catch_warnings(), torch.inference_mode():
            warnings.simplefilter("ignore")
            output = model.generate(torch.tensor([prompt]), **arguments)
    except Exception as error:
        return Outcome(reason=f"{type(error).__name__}: {error}")
    sequences = output if isinstance(output, torch.Tensor) else output.sequences
    return Outcome(sequences[:, len(prompt) :].tolist())


def params_of(llm: LLM, prompt: list[int], arguments: Arguments) -> SamplingParams | Outcome:
    """Return the parameters of a call, or its refusal; no request is begun."""
    frontend = llm.input_processor.hf_compat
    assert frontend is not None
    arguments = fresh(arguments)
    try:
        params = params_of_call(llm, prompt, None, arguments)
        assert isinstance(params, SamplingParams)
        frontend.finish(params.clone(), len(prompt))
    except VLLMValidationError as error:
        return Outcome(reason=str(error))
    except Exception as error:
        return Outcome(reason=f"{type(error).__name__}: {error}", is_sentence=False)
    return params


def of_engine(llm: LLM, prompt: list[int], all_arguments: list[Arguments]) -> list[Outcome]:
    """Return what the engine does with all calls at once."""
    found = [params_of(llm, prompt, arguments) for arguments in all_arguments]
    params = [one for one in found if not isinstance(one, Outcome)]
    answers = iter(
        llm.generate([{"prompt_token_ids": prompt}] * len(params), params, use_tqdm=False)
    )
    outcomes = []
    for one in found:
        if isinstance(one, Outcome):
            outcomes.append(one)
            continue
        sequences = next(answers).outputs
        failed = next((s for s in sequences if s.finish_reason == "error"), None)
        outcomes.append(
            Outcome([list(s.token_ids) for s in sequences])
            if failed is None
            else Outcome(reason=str(failed.stop_reason))
        )
    return outcomes


def verdict(of_hf: Outcome, ours: Outcome, fill: set[int]) -> str:
    """Return one of the four kinds; `fill` is what HF puts after the end of a sequence."""
    if not ours.is_sentence:
        return DIFFER
    if of_hf.rows is None or ours.rows is None:
        if ours.rows is not None:
            return DIFFER
        return BOTH_REFUSE if of_hf.rows is None else REFUSED
    is_equal = len(of_hf.rows) == len(ours.rows) and all(
        equal_to_the_end(tokens, row, fill)
        for tokens, row in zip(ours.rows, of_hf.rows, strict=True)
    )
    return EQUAL if is_equal else DIFFER


def compare(
    llm: LLM, model: PreTrainedModel, prompt: list[int]
) -> dict[str, tuple[str, Outcome, Outcome]]:
    """Return the verdict, HF's outcome and ours of each call."""
    named = list(calls())
    threads = torch.get_num_threads()
    ours = of_engine(llm, prompt, [arguments for _, arguments in named])
    torch.set_num_threads(1)  # to wait for others takes longer than steps of one row
    table = {}
    for (name, arguments), engine in zip(named, ours, strict=True):
        of_hf = of_transformers(model, prompt, arguments)
        eos = arguments.get("eos_token_id", model.generation_config.eos_token_id)
        first = (
            [] if eos is None or isinstance(eos, str) else torch.as_tensor(eos).flatten().tolist()
        )
        pad = arguments.get("pad_token_id", model.generation_config.pad_token_id)
        fill = {-1, *first, *([] if pad is None else [pad])}
        table[name] = (verdict(of_hf, engine, fill), of_hf, engine)
    torch.set_num_threads(threads)
    return table


def report(table: dict[str, tuple[str, Outcome, Outcome]]) -> str:
    """Return the counts, and every call that is neither equal nor refused by both."""
    counts = Counter(kind for kind, _, _ in table.values())
    lines = [" / ".join(f"{counts[kind]} {kind}" for kind in (EQUAL, BOTH_REFUSE, REFUSED, DIFFER))]
    for name, (kind, of_hf, ours) in table.items():
        if kind in (REFUSED, DIFFER):
            hf_says = of_hf.rows if of_hf.rows is not None else of_hf.reason
            we_say = ours.rows if ours.rows is not None else ours.reason
            lines.append(f"{kind}: {name:.120}\n  HF:   {hf_says!s:.160}\n  here: {we_say!s:.220}")
    return "\n".join(lines)


def compare_model(folder: Path) -> str:
    """Return the report of a model, float32."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    settings = {"max_model_len": 256, "skip_tokenizer_init": True}
    with bundled_engine(model=str(folder), **settings) as llm:
        return report(compare(llm, model, [5, 9, 14, 9, 14, 11, 9, 14]))


def main() -> None:
    """Print the report of the bundled Llama and of a narrow GPT-2 with random weights."""
    gpt2 = make_random_model("gpt2", ROOT / "build" / "calls" / "gpt2", num_layers=2, narrow=True)
    for folder in (MODEL, gpt2):
        print(f"{folder.name}: {compare_model(folder)}\n", flush=True)


if __name__ == "__main__":
    main()
