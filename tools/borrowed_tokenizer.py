"""The bundled tokenizer with the special token ids of another model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

BUNDLED_MODEL = Path(__file__).resolve().parents[1] / "models" / "tiny-python-llama"


def special_token_ids(config: Any) -> dict[str, int]:
    """Which id each of the bundled tokenizer's special pieces gets in a model of ``config``.

    A role which shares its id with another (GPT-2's BOS is its EOS) shares the piece as well.
    Of several EOS ids the first is the tokenizer's.
    """
    eos = config.eos_token_id
    ids = {"</s>": eos[0] if isinstance(eos, Sequence) else eos}
    for piece, wanted in (("<s>", config.bos_token_id), ("<pad>", config.pad_token_id)):
        if wanted is not None and wanted not in ids.values():
            ids[piece] = wanted
    return ids


def move_pieces(vocabulary: dict[str, int], wanted: Mapping[str, int]) -> dict[str, int]:
    """Give the ``wanted`` pieces their ids; a piece which held such an id takes the old one."""
    vocabulary = dict(vocabulary)
    holders = {token: piece for piece, token in vocabulary.items()}
    for piece, token in wanted.items():
        old, holder = vocabulary[piece], holders.pop(token, None)
        vocabulary[piece], holders[token] = token, piece
        if holder is not None and holder != piece:
            vocabulary[holder], holders[old] = old, holder
    return dict(sorted(vocabulary.items(), key=lambda item: item[1]))


def bos_template(piece: str, token: int) -> dict[str, Any]:
    """The post-processor, in ``tokenizer.json``'s terms, which puts ``piece`` first."""
    bos = {"SpecialToken": {"id": piece, "type_id": 0}}
    first, second = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    return {
        "type": "TemplateProcessing",
        "single": [bos, first],
        "pair": [bos, first, bos, second],
        "special_tokens": {piece: {"id": piece, "ids": [token], "tokens": [piece]}},
    }


def role_pieces(config: Any) -> dict[str, str]:
    """``bos_token``, ``eos_token`` and ``pad_token`` of the tokenizer for a model of ``config``."""
    pieces = {token: piece for piece, token in special_token_ids(config).items()}
    roles = {"eos_token": "</s>"}
    for role in ("bos", "pad"):
        token = getattr(config, f"{role}_token_id")
        if token is not None:
            roles[f"{role}_token"] = pieces[token]
    if config.model_type == "qwen2":
        # The real tokenizer pads with EOS; without a choice its class would add a piece of its own.
        roles.setdefault("pad_token", roles["eos_token"])
    return roles


def write_tokenizer(config: Any, adds_bos: bool, directory: Path) -> None:
    """Copy the bundled tokenizer to ``directory`` with the special ids of ``config``.

    Raises:
        FileNotFoundError: the bundled model is missing.
    """
    tokenizer = json.loads((BUNDLED_MODEL / "tokenizer.json").read_text(encoding="utf-8"))
    settings = json.loads((BUNDLED_MODEL / "tokenizer_config.json").read_text(encoding="utf-8"))
    vocabulary = move_pieces(tokenizer["model"]["vocab"], special_token_ids(config))
    tokenizer["model"]["vocab"] = vocabulary
    for added in tokenizer["added_tokens"]:
        added["id"] = vocabulary[added["content"]]
    tokenizer["added_tokens"].sort(key=lambda added: added["id"])
    roles = role_pieces(config)
    bos = roles.get("bos_token")
    tokenizer["post_processor"] = bos_template(bos, vocabulary[bos]) if adds_bos and bos else None
    for role in ("bos_token", "eos_token", "pad_token"):
        settings.pop(role, None)
    settings |= roles
    # Bloom's ALiBi has no limit; it was trained on 2,048 tokens.
    settings["model_max_length"] = getattr(config, "max_position_embeddings", 2048)
    for name, content in (("tokenizer.json", tokenizer), ("tokenizer_config.json", settings)):
        text = json.dumps(content, indent=2, ensure_ascii=False)
        (directory / name).write_text(text + "\n", encoding="utf-8")
