"""Several prompts, answered as `model.generate()` answers each of them alone.

python examples/generate.py [MODEL]
"""

import sys

from transformers import GenerationConfig

from vllm import LLM

MODEL = sys.argv[1] if len(sys.argv) > 1 else "models/tiny-python-llama"

if __name__ == "__main__":
    llm = LLM(MODEL, dtype="float32", hf_compat=True)
    config = GenerationConfig(max_new_tokens=32, repetition_penalty=1.2)
    prompts = ["def f(x):", "import os\n", "class Stack:\n"]
    for output in llm.generate(prompts, config, no_repeat_ngram_size=3):
        print(f"{output.prompt!r} -> {output.outputs[0].text!r}")
