"""Samples that are those of Transformers for the same seed, whatever else is in the batch.

python examples/sampling.py [MODEL]
"""

import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from vllm import LLM

MODEL = sys.argv[1] if len(sys.argv) > 1 else "models/tiny-python-llama"
FIELDS = {"do_sample": True, "temperature": 0.8, "top_p": 0.9, "max_new_tokens": 16}

if __name__ == "__main__":
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    ids = tokenizer("def f(x):", return_tensors="pt").input_ids
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    torch.manual_seed(7)
    theirs = model.generate(ids, num_return_sequences=3, **FIELDS)[:, ids.shape[1] :]

    llm = LLM(MODEL, dtype="float32", hf_compat=True)
    answer = llm.generate("def f(x):", seed=7, num_return_sequences=3, **FIELDS)[0]
    for row, ours in zip(theirs.tolist(), answer.outputs, strict=True):
        tokens = list(ours.token_ids)
        print("equal" if row[: len(tokens)] == tokens else "DIFFERENT", repr(ours.text))
