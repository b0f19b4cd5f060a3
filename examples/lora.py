"""A LoRA adapter with Transformers' bits: exact mode computes it as PEFT does.

python examples/lora.py [MODEL ADAPTER]       # without arguments: a random adapter
"""

import sys
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from vllm import LLM
from vllm.lora.request import LoRARequest

MODEL, ADAPTER = sys.argv[1:3] if len(sys.argv) > 2 else ("models/tiny-python-llama", "build/lora")


def make_adapter(folder: str) -> None:
    torch.manual_seed(0)
    config = LoraConfig(r=8, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    get_peft_model(AutoModelForCausalLM.from_pretrained(MODEL), config).save_pretrained(folder)


if __name__ == "__main__":
    if not Path(ADAPTER).exists():
        make_adapter(ADAPTER)
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    ids = tokenizer("def f(x):", return_tensors="pt").input_ids
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.bfloat16)
    theirs = PeftModel.from_pretrained(model, ADAPTER).generate(input_ids=ids, max_new_tokens=16)

    llm = LLM(MODEL, dtype="bfloat16", hf_compat="exact", enable_lora=True)
    answer = llm.generate(
        "def f(x):", lora_request=LoRARequest("one", 1, ADAPTER), max_new_tokens=16
    )
    ours = list(answer[0].outputs[0].token_ids)
    print("equal" if theirs[0, ids.shape[1] :].tolist() == ours else "DIFFERENT", ours)
