"""The same logits in an engine and in Transformers, whatever the batch and the machine.

python examples/deterministic.py [MODEL]
"""

import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from vllm import LLM
from vllm.deterministic import attach

MODEL = sys.argv[1] if len(sys.argv) > 1 else "models/tiny-python-llama"
PROMPTS = ["def f(x):", "import os\nimport sys\n", "class Stack:\n"]

if __name__ == "__main__":
    llm = LLM(MODEL, dtype="bfloat16", deterministic=True, hf_compat=True)
    answers = llm.generate(PROMPTS, max_new_tokens=16, output_logits=True)

    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    model = attach(AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.bfloat16).eval())
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        theirs = model.generate(
            ids, max_new_tokens=16, output_logits=True, return_dict_in_generate=True
        )
        logits = torch.cat(theirs.logits)
        equal = torch.equal(logits, torch.from_numpy(answer.outputs[0].logits))
        print("the same bits" if equal else "DIFFERENT", tuple(logits.shape), repr(prompt))
