"""Beam search and beam sampling: all sequences, with Transformers' scores.

python examples/beams.py [MODEL]
"""

import sys

from vllm import LLM

MODEL = sys.argv[1] if len(sys.argv) > 1 else "models/tiny-python-llama"

if __name__ == "__main__":
    llm = LLM(MODEL, dtype="float32", hf_compat=True)
    search = {"num_beams": 4, "num_return_sequences": 2, "max_new_tokens": 16}
    found = llm.generate("def f(x):", length_penalty=0.8, **search)[0]
    sampled = llm.generate("def f(x):", do_sample=True, seed=3, **search)[0]
    for name, answer in (("search", found), ("sampling", sampled)):
        for one in answer.outputs:
            print(f"{name}: {float(one.sequences_score):.4f} {one.text!r}")
