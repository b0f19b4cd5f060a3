"""``vllm run-batch --hf-compat``: a line is a chat with HF's names, or has the reason why not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from transformers import GenerationConfig, PreTrainedModel

from tests.engines import MODEL
from tests.reference import generate, prompt_texts
from tests.server.conftest import CHAT_TEMPLATE

LIKE_HF = {"max_new_tokens": 12, "repetition_penalty": 1.3, "no_repeat_ngram_size": 2}
CHAT = "/v1/chat/completions"
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (CHAT, {"max_new_tokens": "x"}, "max_new_tokens: Input should be a valid integer"),
    (CHAT, {"stream_interval": 1 << 64}, "stream_interval is a number of more than 64 bits"),
    (CHAT, {"num_beam": 2}, "did you mean num_beams?"),
    (CHAT, {"encoder_repetition_penalty": -1.0}, "strictly positive float"),
    (CHAT, {"messages": [5]}, "messages: "),
    ("/v1/completions", {"prompt": "def", "messages": None}, "URL /v1/completions was used"),
    ("/v1/completions", LIKE_HF, "URL /v1/completions was used"),
    ("/v1/responses", {"input": "def"}, "URL /v1/responses was used"),
]


def test_lines(tmp_path: Path, hf_model: PreTrainedModel, tokenizer: Any) -> None:
    text = prompt_texts(1)[0]
    body = {"model": "tiny", "messages": [{"role": "user", "content": text}]}
    asked = [(CHAT, {**LIKE_HF, "return_token_ids": True}, ""), *REFUSED]
    lines = [
        {"custom_id": str(i), "method": "POST", "url": url, "body": {**body, **fields}}
        for i, (url, fields, _) in enumerate(asked)
    ]
    answers = run_batch(tmp_path, lines)
    assert [answer["custom_id"] for answer in answers] == [line["custom_id"] for line in lines]
    (choice,) = answers[0]["response"]["body"]["choices"]
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert choice["token_ids"] == generate(hf_model, ids, GenerationConfig(**LIKE_HF))
    for answer, (_, fields, reason) in zip(answers[1:], REFUSED, strict=True):
        assert answer["response"]["status_code"] == 400, fields
        assert reason in json.dumps(answer["error"]), fields


def run_batch(folder: Path, lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what the command writes."""
    asked, answered, template = folder / "in.jsonl", folder / "out.jsonl", folder / "template"
    asked.write_text("\n".join(map(json.dumps, lines)))
    template.write_text(CHAT_TEMPLATE)
    command = [
        str(Path(sys.executable).parent / "vllm"), "run-batch", "--model", str(MODEL),
        "-i", str(asked), "-o", str(answered), "--served-model-name", "tiny", "--hf-compat",
        "--dtype", "float32", "--max-model-len", "2048", "--enforce-eager",
        "--kv-cache-memory-bytes", str(1 << 28), "--chat-template", str(template),
    ]  # fmt: skip
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, env=os.environ)
    assert ran.returncode == 0, ran.stderr[-3000:]
    return [json.loads(line) for line in answered.read_text().splitlines()]
