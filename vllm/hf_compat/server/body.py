"""Hugging Face's names in the body of an OpenAI request.

`GenerationFields` are the fields of Transformers' ``GenerationConfig`` that change the tokens and
that vLLM's own schema does not have. What a client sets of them travels inside
``SamplingParams.extra_args``, through copies and endpoints, until `Frontend.finish` knows the
prompt and puts it over what the rest of the body means (`in_hf_terms`).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from vllm.exceptions import VLLMValidationError
from vllm.hf_compat.call.request import LISTS
from vllm.sampling_params import SamplingParams

BODY_KEY = "generation_config"
"""Key of a client's fields in ``SamplingParams.extra_args``."""

LENGTHS = ("max_new_tokens", "max_length")
"""HF's limits of a length, which replace OpenAI's ``max_tokens``."""

# Nothing is converted: "3", 3.0 and true are not 3. Integers are those that a tensor can hold.
Int = Annotated[int, Field(strict=True, ge=-(2**63), le=2**63 - 1)]
Float = Annotated[float, Field(strict=True)]
Bool = Annotated[bool, Field(strict=True)]
Str = Annotated[str, Field(strict=True)]
# Of a list the first fault is enough: all of them would be a longer answer than the body was.
Ids = Annotated[list[Int], Field(fail_fast=True)]
Sequences = Annotated[list[Ids], Field(fail_fast=True)]
Biases = Annotated[list[tuple[Ids, Float]], Field(fail_fast=True)]
Texts = Annotated[list[Str], Field(fail_fast=True)]


def _field(description: str, default: Any = None) -> Any:
    """Return an optional field that is documented with the default that HF has for it."""
    return Field(default=None, description=description, json_schema_extra={"default": default})


class Watermark(BaseModel):
    """Green-list watermark (Transformers' ``WatermarkingConfig``)."""

    model_config = ConfigDict(extra="forbid")

    greenlist_ratio: Float = Field(0.25, description="Share of the vocabulary that is green.")
    bias: Float = Field(2.0, description="Added to the logits of green tokens.")
    hashing_key: Int = Field(15485863, description="Key of the hash that chooses green tokens.")
    seeding_scheme: Literal["lefthash", "selfhash"] = Field(
        "lefthash", description="Whether the hash reads the candidate token itself (`selfhash`)."
    )
    context_width: Int = Field(1, description="Number of preceding tokens that the hash reads.")


class GenerationFields(BaseModel):
    """HF's fields, as a JSON body has them; an unset field or null has the default of the model's
    ``generation_config.json``, or else the documented one.
    """

    max_new_tokens: Int | None = _field(
        "Most tokens to generate; takes the place of max_tokens and must not be sent with it."
    )
    max_length: Int | None = _field(
        "Most tokens of prompt and answer together; ignored if max_new_tokens is set, and must not "
        "be sent with max_tokens."
    )
    min_new_tokens: Int | None = _field("Number of new tokens before which no EOS is chosen.")
    min_length: Int | None = _field(
        "Number of tokens, prompt included, before which no EOS is chosen; ignored if "
        "min_new_tokens is set.",
        0,
    )
    stop_strings: Str | Texts | None = _field(
        "Text or texts that end the answer and stay part of it."
    )
    max_time: Float | None = _field("Seconds after which no further token is begun.")
    eos_token_id: Int | Ids | None = _field(
        "Token or tokens that end the answer, in place of the model's."
    )
    do_sample: Bool | None = _field(
        "Whether tokens are drawn; wins over what temperature says, and unset follows it.", False
    )
    num_return_sequences: Int | None = _field("Number of answers to each prompt, like n.", 1)
    num_beams: Int | None = _field("Number of beams that are searched; 1 is no beam search.", 1)
    early_stopping: Bool | Literal["never"] | None = _field(
        "When a beam search ends: as soon as num_beams answers are complete (true), when a better "
        "one is unlikely (false), or when none is possible (`never`).",
        False,
    )
    top_h: Float | None = _field(
        "Keeps the likeliest tokens whose entropy is at most this share of that of all; only if "
        "tokens are drawn."
    )
    typical_p: Float | None = _field(
        "Keeps the tokens whose information is nearest to the expected one, up to this "
        "probability; only if tokens are drawn.",
        1.0,
    )
    epsilon_cutoff: Float | None = _field(
        "Drops tokens that are less probable than this; only if tokens are drawn.", 0.0
    )
    eta_cutoff: Float | None = _field(
        "Drops tokens that are less probable than a bound which follows from this and the entropy; "
        "only if tokens are drawn.",
        0.0,
    )
    encoder_repetition_penalty: Float | None = _field(
        "Divides or multiplies the logits of tokens that are in the prompt, to favour them if "
        "above 1.",
        1.0,
    )
    no_repeat_ngram_size: Int | None = _field(
        "Length of the n-grams that may occur only once; 0 is off.", 0
    )
    encoder_no_repeat_ngram_size: Int | None = _field(
        "Length of the n-grams of the prompt that the answer may not repeat; 0 is off.", 0
    )
    bad_words_ids: Sequences | None = _field("Token sequences that may not be generated.")
    sequence_bias: Biases | None = _field(
        "Pairs of a token sequence and what is added to the logit of its last token where the "
        "others precede."
    )
    suppress_tokens: Ids | None = _field("Tokens that are never chosen.")
    begin_suppress_tokens: Ids | None = _field("Tokens that are not chosen as the first new one.")
    forced_bos_token_id: Int | None = _field(
        "Token that follows a prompt of one token, whatever the model says."
    )
    forced_eos_token_id: Int | Ids | None = _field(
        "Token or tokens of which one is chosen last when the length limit is reached."
    )
    exponential_decay_length_penalty: tuple[Int, Float] | None = _field(
        "Number of new tokens after which EOS becomes likelier, and the factor by which it grows "
        "with each further one."
    )
    renormalize_logits: Bool | None = _field(
        "Whether processed logits are made log-probabilities again."
    )
    remove_invalid_values: Bool | None = _field(
        "Whether NaN and infinite logits are replaced by finite ones.", False
    )
    watermarking_config: Watermark | None = _field("Watermark that the answer gets.")
    guidance_scale: Float | None = _field(
        "Strength of classifier-free guidance; 1 and unset are off."
    )
    negative_prompt_ids: Ids | None = _field(
        "Prompt that guidance leads away from; unset is the last token of the prompt."
    )
    token_healing: Bool | None = _field(
        "Whether the end of the prompt may be tokenized anew to fit what follows."
    )
    use_cache: Bool | None = _field("Whether keys and values of former tokens are kept.", True)
    cache_implementation: Str | None = _field("Kind of cache that keys and values are kept in.")
    prefill_chunk_size: Int | None = _field("Length of the chunks that a prompt is computed in.")
    is_assistant: Bool | None = _field("Whether the answer is a draft for another model.")
    use_mtp: Bool | None = _field("Whether the model's multi-token prediction drafts tokens.")
    prompt_lookup_num_tokens: Int | None = _field(
        "Number of tokens that are drafted from the prompt's n-grams."
    )
    assistant_early_exit: Int | None = _field("Layer of the model whose early exit drafts tokens.")
    penalty_alpha: Float | None = _field("Degeneration penalty of contrastive search.")
    dola_layers: Str | Ids | None = _field("Layers that DoLa decoding contrasts.")
    num_beam_groups: Int | None = _field("Number of groups of a diverse beam search.", 1)
    diversity_penalty: Float | None = _field(
        "Penalty for tokens that other beam groups chose in the same step.", 0.0
    )
    force_words_ids: Sequences | Annotated[list[Sequences], Field(fail_fast=True)] | None = _field(
        "Token sequences that a constrained beam search must generate."
    )
    output_scores: Bool | None = _field("Whether the processed logits are returned.", False)
    output_logits: Bool | None = _field("Whether the raw logits are returned.")
    output_attentions: Bool | None = _field("Whether attention weights are returned.")
    output_hidden_states: Bool | None = _field("Whether hidden states are returned.")


class BodyFields(GenerationFields):
    """What travels: `GenerationFields`, and what HF's modes read of upstream's own fields."""

    model_config = ConfigDict(extra="forbid")

    temperature: Float | None = None
    length_penalty: Float | None = None


def attach_body(params: SamplingParams, body: BodyFields) -> None:
    """Store a client's fields in `params`, in place."""
    fields = _as_json(body)
    if fields:
        params.extra_args = {**(params.extra_args or {}), BODY_KEY: fields}


def take_body(params: SamplingParams) -> dict[str, Any]:
    """Take a client's fields out of `params`, in place; empty if there are none.

    Raises:
        VLLMValidationError: they came by another way than a checked body, and are not what
            `BodyFields` describes.
    """
    if not params.extra_args or BODY_KEY not in params.extra_args:
        return {}
    extra_args = dict(params.extra_args)
    fields = extra_args.pop(BODY_KEY)
    params.extra_args = extra_args or None
    try:
        return _as_json(BodyFields.model_validate(fields))
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, (BODY_KEY, *first["loc"])))
        raise VLLMValidationError(f"{name}: {first['msg']}.", parameter=name) from None


def _as_json(body: BodyFields) -> dict[str, Any]:
    """Return the fields that are set; long lists, which are JSON already, as they are."""
    lists = {name: value for name in LISTS if (value := getattr(body, name)) is not None}
    return body.model_dump(mode="json", exclude_none=True, exclude={*LISTS}) | lists
