"""hf_compat="exact": every logit of the engine is the one of `generate()`, to the last bit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    PreTrainedModel,
)

from tests.engines import MODEL, bundled_engine
from tests.hf_compat.test_parity import as_prompts, counter, token_ids
from tests.reference import equal_to_the_end, generate_all
from tests.sizes import size
from vllm import SamplingParams
from vllm.fork.startup import torch_switches
from vllm.fork.startup.torch_switches import Switches, read_switches
from vllm.hf_compat.answers import HFOutput
from vllm.hf_model.model import NO_ADAPTER
from vllm.lora.request import LoRARequest

if TYPE_CHECKING:
    from vllm import LLM

DTYPES = ("bfloat16", "float32", "float16")[: size(1, 3)]


@pytest.fixture(scope="module", params=DTYPES)
def dtype(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def exact_engine(dtype: str) -> Iterator[LLM]:
    """Its KV cache is too small for the requests of these tests."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("VLLM_ALLOW_INSECURE_SERIALIZATION", "1")  # for `apply_model`
        with bundled_engine(
            hf_compat="exact",
            dtype=dtype,
            max_model_len=512,
            max_num_batched_tokens=512,
            block_size=16,
            num_gpu_blocks_override=64,
            enable_lora=True,
            max_loras=2,
        ) as llm:
            yield llm


@pytest.fixture(scope="module")
def stock_model(dtype: str) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(MODEL, dtype=getattr(torch, dtype)).eval()


def test_report_of_an_engine(exact_engine: LLM) -> None:
    report = exact_engine.parity_report()
    (row,) = report.rows
    assert (row.kind, row.count, row.has_hf_bits) == ("LlamaForCausalLM", 1, True)
    assert report.has_hf_bits


def switches(model: Any) -> Switches:
    """Return PyTorch's switches in the worker (with `LLM.apply_model`)."""
    return read_switches()


GENERATE = """
import json, runpy, sys, torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
model.generate(torch.tensor([[5, 6, 7]]), max_new_tokens=2)
assert "vllm" not in sys.modules
print(json.dumps(runpy.run_path(sys.argv[2])["read_switches"]()))
"""


def test_switches_are_those_of_a_process_that_generates(exact_engine: LLM) -> None:
    """Also after an answer: nothing that vLLM imports or does later changes them."""
    config = GenerationConfig(max_new_tokens=2)
    exact_engine.generate({"prompt_token_ids": [5, 6, 7]}, config, use_tqdm=False)
    command = [sys.executable, "-c", GENERATE, str(MODEL), torch_switches.__file__]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert exact_engine.apply_model(switches) == [json.loads(done.stdout.splitlines()[-1])]


def variables(model: Any) -> dict[str, str]:
    """Return those of the worker (with `LLM.apply_model`)."""
    return dict(os.environ)


def test_no_variable_of_pytorchs_libraries_is_set(exact_engine: LLM) -> None:
    """Those of threads, of compiled code and of Triton's cache are vLLM's to choose."""
    given = Path("/proc/self/environ").read_bytes().decode().split("\0")
    (own,) = exact_engine.apply_model(variables)
    prefixes = ("ATEN", "CUBLAS", "CUDNN", "DNNL", "MKL", "NVIDIA", "ONEDNN", "PYTORCH", "TORCH_")
    new = {f"{name}={value}" for name, value in own.items() if name.startswith(prefixes)}
    # It makes torch.cuda.is_available() ask NVML, so that it does not start CUDA.
    assert new - {*given} <= {"PYTORCH_NVML_BASED_CUDA_CHECK=1"}


def prompts_together(model: Any) -> bool:
    """Whether exact mode computes prompts together (with `LLM.apply_model`)."""
    return bool(model.groups_prompts[NO_ADAPTER])


def test_prompts_are_computed_together(exact_engine: LLM) -> None:
    assert exact_engine.apply_model(prompts_together) == [True]


def stock_logits(
    model: PreTrainedModel, prompt: list[int], config: GenerationConfig
) -> tuple[list[int], np.ndarray]:
    """Return new tokens, and the float32 logits of `generate()`, alone in its batch."""
    if (seed := getattr(config, "seed", None)) is not None:
        torch.manual_seed(seed)
    with torch.inference_mode():
        output = model.generate(
            input_ids=torch.tensor([prompt]),
            generation_config=config,
            output_logits=True,
            return_dict_in_generate=True,
        )
    tokens = output.sequences[0, len(prompt) :].tolist()
    return tokens, torch.cat(output.logits).float().numpy()


@pytest.mark.parametrize(
    "fields",
    [{}, {"repetition_penalty": 1.2}, {"do_sample": True, "top_p": 0.95, "temperature": 0.8}],
    ids=["greedy", "penalty", "sampled"],
)
def test_32_requests_in_flight(
    exact_engine: LLM, stock_model: PreTrainedModel, prompts: list[list[int]], fields: Any
) -> None:
    """Among others, and preempted: they wait for one another's memory."""
    configs = [
        GenerationConfig(
            max_new_tokens=size(8, 24) + i // size(2, 1), output_logits=True, seed=i, **fields
        )
        for i in range(32)
    ]
    before = counter(exact_engine, "vllm:num_preemptions")
    outputs = exact_engine.generate(as_prompts(prompts), configs, use_tqdm=False)
    assert counter(exact_engine, "vllm:num_preemptions") > before
    for prompt, config, output in zip(prompts, configs, outputs, strict=True):
        one = output.outputs[0]
        assert isinstance(one, HFOutput)
        assert one.logits is not None
        tokens, logits = stock_logits(stock_model, prompt, config)
        assert list(one.token_ids) == tokens
        assert one.logits.tobytes() == logits.tobytes()


@pytest.mark.parametrize(
    "fields",
    [
        {"num_beams": 3, "num_return_sequences": 3, "no_repeat_ngram_size": 2},
        {"num_beams": 2, "do_sample": True, "seed": 4},
        {"guidance_scale": 1.7},
    ],
    ids=["beams", "sampled beams", "guidance"],
)
def test_requests_of_several_rows(
    exact_engine: LLM, stock_model: PreTrainedModel, prompts: list[list[int]], fields: Any
) -> None:
    """HF computes beams in one batch, so these are equal as far as rounding decides nothing."""
    config = GenerationConfig(max_new_tokens=16, **fields)
    outputs = exact_engine.generate(as_prompts(prompts[:4]), config, use_tqdm=False)
    for prompt, output in zip(prompts, outputs, strict=False):
        for one, row in zip(output.outputs, generate_all(stock_model, prompt, config), strict=True):
            assert equal_to_the_end(list(one.token_ids), row, {0, 2})


@pytest.fixture
def adapters(dtype: str, tmp_path: Path) -> list[PeftModel]:
    """LoRA and DoRA adapters of random weights in PEFT, read from folders named by their place."""
    found = []
    for i, use_dora in enumerate((False, True)):
        config = LoraConfig(
            r=8,
            lora_alpha=12,
            target_modules=["q_proj", "v_proj", "o_proj", "up_proj", "down_proj"],
            init_lora_weights=False,  # an untrained adapter's would change nothing
            use_dora=use_dora,
            task_type="CAUSAL_LM",
        )
        torch.manual_seed(i)
        bases = [
            AutoModelForCausalLM.from_pretrained(MODEL, dtype=getattr(torch, dtype))
            for _ in range(2)
        ]
        get_peft_model(bases[0], config).save_pretrained(str(tmp_path / str(i)))
        found.append(PeftModel.from_pretrained(bases[1], tmp_path / str(i)).eval())
    return found


@pytest.mark.long
def test_requests_with_two_adapters_and_without(
    exact_engine: LLM,
    stock_model: PreTrainedModel,
    adapters: list[PeftModel],
    prompts: list[list[int]],
    tmp_path: Path,
) -> None:
    """All in one batch; the last of each kind after the adapters were loaded."""
    models = [stock_model, *adapters]
    requests = [None, *(LoRARequest(str(i), i + 1, str(tmp_path / str(i))) for i in range(2))]
    config = GenerationConfig(max_new_tokens=8, output_logits=True)
    outputs = exact_engine.generate(
        as_prompts(prompts[:15]),
        config,
        lora_request=[requests[i % 3] for i in range(15)],
        use_tqdm=False,
    )
    for i, (prompt, output) in enumerate(zip(prompts, outputs, strict=False)):
        one = output.outputs[0]
        assert isinstance(one, HFOutput)
        assert one.logits is not None
        tokens, logits = stock_logits(models[i % 3], prompt, config)
        assert list(one.token_ids) == tokens, i
        assert one.logits.tobytes() == logits.tobytes(), i


def test_logprobs_of_the_prompt(
    exact_engine: LLM, stock_model: PreTrainedModel, prompts: list[list[int]]
) -> None:
    """Those of one call of the model, beside the answer's own.

    The random texts are of lengths at which another number of threads shows in some of the logits.
    """
    generator = torch.Generator().manual_seed(0)
    texts = prompts[:4] + [
        torch.randint(5, 4000, (length,), generator=generator).tolist() for length in range(2, 48)
    ]
    params = SamplingParams(temperature=0, max_tokens=4, prompt_logprobs=0, logprobs=0)
    outputs = exact_engine.generate(as_prompts(texts), params, use_tqdm=False)
    for prompt, output in zip(texts, outputs, strict=True):
        with torch.inference_mode():
            logits = stock_model(torch.tensor([prompt])).logits[0].float()
        expected = logits.log_softmax(-1)[range(len(prompt) - 1), prompt[1:]].tolist()
        assert output.prompt_logprobs is not None
        found = [
            logprobs[token].logprob
            for token, logprobs in zip(prompt[1:], output.prompt_logprobs[1:], strict=True)
            if logprobs is not None
        ]
        assert found == expected
    config = GenerationConfig(max_new_tokens=4)
    plain = exact_engine.generate(as_prompts(texts), config, use_tqdm=False)
    assert token_ids(outputs) == token_ids(plain)
