"""Transformers' ``GenerationConfig``: loaded, merged and limited as ``generate()`` does it."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from transformers import GenerationConfig

from vllm.exceptions import VLLMValidationError

if TYPE_CHECKING:
    from vllm.config import ModelConfig


def load_generation_config(model_config: ModelConfig) -> GenerationConfig:
    """Return what ``AutoModelForCausalLM.from_pretrained(model).generation_config`` holds.

    That is generation_config.json, or, for models without one, the fields of config.json as they
    are written there (``GenerationMixin.adjust_generation_fn``; vLLM asks the loaded configuration,
    which has dropped the generation parameters that older models keep in it).
    ``--override-generation-config`` comes on top.

    Raises:
        ValueError: ``--generation-config vllm``, which asks for other defaults than HF's, or a
            folder with neither file.
    """
    if model_config.generation_config == "vllm":
        raise ValueError(
            "--generation-config vllm asks for vLLM's own defaults and hf_compat for Hugging "
            "Face's: leave one of the two out."
        )
    loaded = _read_generation_config(model_config)
    overrides = dict(model_config.override_generation_config)
    if overrides.get("temperature") == 0:  # vLLM's way to say greedy, which HF's classes refuse
        del overrides["temperature"]
        overrides["do_sample"] = False
    loaded.update(**overrides)
    return loaded


def _read_generation_config(model_config: ModelConfig) -> GenerationConfig:
    options: dict[str, Any] = {"token": model_config.hf_token}
    folder = model_config.generation_config
    if folder == "auto":
        folder = model_config.hf_config_path or model_config.model
        options["revision"] = model_config._hf_config_revision or model_config.revision
    try:
        return GenerationConfig.from_pretrained(folder, **options)
    except OSError:  # the file is not there
        pass
    try:
        return GenerationConfig.from_pretrained(
            folder, config_file_name="config.json", _from_model_config=True, **options
        )
    except (OSError, TypeError):  # for this file Transformers opens None if it is not there
        raise ValueError(
            f"hf_compat found neither generation_config.json nor config.json in {folder}: pass a "
            "folder with one as --generation-config."
        ) from None


def merge_generation_config(
    given: GenerationConfig | None, of_model: GenerationConfig
) -> GenerationConfig:
    """Fill the unset fields of `given` from the model's configuration, then from HF's defaults.

    ``GenerationMixin._prepare_generation_config`` does the same with the same methods. Neither
    argument is changed; the result shares the lists of `given`, which may be long.
    """
    merged = copy.copy(given) if given is not None else GenerationConfig()
    merged.update(**of_model.to_dict(), defaults_only=True, allow_custom_entries=True)
    merged.update(**of_model._get_default_generation_params(), defaults_only=True)
    return merged


def eos_token_ids(config: GenerationConfig) -> list[int]:
    """Return the ids that end a sequence, as a list (HF accepts one, several or none).

    Raises:
        VLLMValidationError: they are no ids.
    """
    if config.eos_token_id is None:
        return []
    try:
        eos = torch.as_tensor(config.eos_token_id, dtype=torch.int64)  # as HF converts them
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise VLLMValidationError(
            f"eos_token_id={config.eos_token_id!r:.200} is no token id, list of ids or tensor of "
            f"them: {error}",
            parameter="eos_token_id",
        ) from None
    if not eos.numel():
        raise VLLMValidationError(
            "eos_token_id is an empty list, which generate() takes the first id of: give None if "
            "no token is to end the answer.",
            parameter="eos_token_id",
        )
    return eos.flatten().tolist()


def max_new_tokens(
    config: GenerationConfig,
    *,
    length_is_default: bool,
    prompt_len: int,
    max_position_embeddings: int | None,
) -> int:
    """Return how many tokens HF generates at most after a prompt.

    ``max_new_tokens`` wins over ``max_length``, which counts the prompt; when nobody set either,
    HF generates 20 tokens, but not beyond the model's positions
    (``GenerationMixin._prepare_generated_length`` and ``_validate_generated_length``).

    Args:
        config: a merged configuration.
        length_is_default: neither the caller nor the model set ``max_length``.
        prompt_len: number of prompt tokens.
        max_position_embeddings: of the model's configuration, if it has one.

    Raises:
        VLLMValidationError: the prompt alone reaches ``max_length``.
    """
    if config.max_new_tokens is not None:
        return int(config.max_new_tokens)
    limit = config.max_length
    if limit is None:
        raise VLLMValidationError(
            "generate() raises a TypeError for max_length=None without max_new_tokens: leave "
            "max_length out, or set one of the two.",
            parameter="max_length",
        )
    if length_is_default:
        limit += prompt_len
        if max_position_embeddings is not None:
            limit = min(limit, max_position_embeddings)
    if limit <= prompt_len:
        # One is also what is tried before the prompt is known.
        has = f"The prompt has {prompt_len} tokens" if prompt_len > 1 else "A prompt has tokens"
        raise VLLMValidationError(
            f"{has} and max_length={limit} counts them: raise "
            "max_length, or set max_new_tokens, which does not."
        )
    return int(limit - prompt_len)
