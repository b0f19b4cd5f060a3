"""A client of a server with hf_compat: Hugging Face's fields beside OpenAI's.

vllm serve models/tiny-python-llama --hf-compat --dtype float32 --served-model-name tiny
python examples/client.py [ADDRESS]
"""

import sys

import openai

ADDRESS = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"

if __name__ == "__main__":
    client = openai.OpenAI(base_url=f"{ADDRESS}/v1", api_key="none")
    fields = {"max_new_tokens": 32, "repetition_penalty": 1.2, "no_repeat_ngram_size": 3}
    answer = client.completions.create(model="tiny", prompt="def f(", extra_body=fields)
    print(repr(answer.choices[0].text))
    stream = client.completions.create(
        model="tiny",
        prompt="def f(",
        stream=True,
        extra_body={**fields, "do_sample": True, "seed": 1},
    )
    print("".join(part.choices[0].text for part in stream))
    try:
        client.completions.create(model="tiny", prompt="def f(", extra_body={"num_beam": 4})
    except openai.BadRequestError as error:
        print(error.body["message"] if isinstance(error.body, dict) else error)
