"""A `generate()` call: a ``GenerationConfig`` and what HF takes beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import cloudpickle
import torch
from transformers import GenerationConfig
from transformers.generation import LogitsProcessor

from vllm.exceptions import VLLMValidationError
from vllm.fork.nearest_name import nearest_name
from vllm.hf_compat.call.arguments import HONOURED, check_prompts, without_harmless
from vllm.hf_compat.call.generation_config import merge_generation_config
from vllm.hf_compat.call.plain_values import refuse_text, use_plain_values
from vllm.sampling_params import SamplingParams

if TYPE_CHECKING:
    from vllm.entrypoints.llm import LLM

PrefixFunction = Callable[[int, torch.Tensor], list[int]]


def pack(objects: Any) -> bytes:
    """Return what a caller gave as it travels: each sequence has a copy of its own.

    Raises:
        VLLMValidationError: it cannot be pickled.
    """
    try:
        return cloudpickle.dumps(objects)
    except Exception as error:  # whatever the user's objects raise
        raise VLLMValidationError(
            "A caller's processors, callbacks and criteria run on a copy for each sequence, and "
            f"one of these cannot be pickled ({error}): leave out what it holds open (files, "
            "locks, models)."
        ) from None


@dataclass(frozen=True)
class Callbacks:
    """What runs in the worker, on a copy of its own for each request.

    Attributes:
        logits_processor: HF's argument of that name.
        prefix_allowed_tokens_fn: likewise.
    """

    logits_processor: list[LogitsProcessor] = field(default_factory=list)
    prefix_allowed_tokens_fn: PrefixFunction | None = None

    def pack(self) -> bytes | None:
        """Return the callbacks for the way to the worker; None if there are none.

        Raises:
            VLLMValidationError: one of them cannot be pickled.
        """
        return None if self == Callbacks() else pack(self)

    @classmethod
    def unpack(cls, packed: bytes | None) -> Callbacks:
        """Return a copy of what `pack` packed."""
        callbacks = cloudpickle.loads(packed) if packed else cls()
        assert isinstance(callbacks, cls)
        return callbacks


@dataclass(frozen=True)
class Place:
    """The place of a prompt in an HF batch, which shares one generator and has one length.

    Attributes:
        row: of the first sequence of this prompt, in prompts.
        num_rows: prompts in the batch.
        left_padding: how many padding tokens HF has before this prompt.
        pad_token_id: of the padding; None takes the configuration's.
    """

    row: int = 0
    num_rows: int = 1
    left_padding: int = 0
    pad_token_id: int | None = None


@dataclass(frozen=True)
class GenerateCall:
    """What `generate()` is called with besides a prompt.

    Attributes:
        config: unset fields come from the model; None for all of them.
        arguments: fields given by themselves, which come last: None switches one off.
        seed: of ``torch.manual_seed`` before the call.
        callbacks: for the worker, packed.
        criteria: HF's ``stopping_criteria``, packed (`pack`).
        negative_prompt_ids: HF's argument of that name, for ``guidance_scale``.
        place: in an HF batch.
    """

    config: GenerationConfig | None = None
    arguments: dict[str, Any] = field(default_factory=dict)
    seed: int | None = None
    callbacks: bytes | None = None
    criteria: bytes | None = None
    negative_prompt_ids: list[int] | None = None
    place: Place = field(default_factory=Place)

    @classmethod
    def of(cls, given: GenerateCall | GenerationConfig | None) -> GenerateCall:
        """Return a call with this configuration, whose attribute ``seed`` is the seed."""
        if isinstance(given, GenerateCall):
            return given
        return cls(config=given, seed=getattr(given, "seed", None))

    def updated(self, arguments: dict[str, Any]) -> GenerateCall:
        """Return the call with more of `generate()`'s keyword arguments.

        Raises:
            VLLMValidationError: one of them is not honoured, or cannot be pickled.
        """
        arguments = without_harmless(arguments)
        callbacks = Callbacks(
            _objects("logits_processor", arguments.pop("logits_processor", None)),
            arguments.pop("prefix_allowed_tokens_fn", None),
        )
        criteria = _objects("stopping_criteria", arguments.pop("stopping_criteria", None))
        return replace(
            self,
            seed=arguments.pop("seed", self.seed),
            callbacks=callbacks.pack(),
            criteria=pack(criteria) if criteria else None,
            negative_prompt_ids=_token_ids(arguments.pop("negative_prompt_ids", None)),
            arguments={**self.arguments, **arguments},
        )

    def merged(self, of_model: GenerationConfig) -> GenerationConfig:
        """Return the configuration as `generate()` merges it, arguments last.

        Args:
            of_model: the model's ``generation_config``.

        Raises:
            VLLMValidationError: HF refuses a value, or something is no argument of `generate()`.
        """
        merged = merge_generation_config(self.config, of_model)
        refuse_text({**vars(merged), **self.arguments})
        try:
            unknown = merged.update(**self.arguments)
            use_plain_values(merged)
        except (ValueError, TypeError, AttributeError) as error:
            raise VLLMValidationError(str(error)) from None
        for name, value in unknown.items():
            if value is not None:  # HF looks at no other
                raise VLLMValidationError(
                    f"generate() has no argument {name!r} that hf_compat honours: "
                    f"{_did_you_mean(name, merged)}"
                )
        return merged

    def has_default_length(self, of_model: GenerationConfig) -> bool:
        """Return whether nobody has set ``max_length``."""
        given = self.config.max_length if self.config is not None else None
        lengths = (self.arguments.get("max_length"), given, of_model.max_length)
        return all(length is None for length in lengths)


def _did_you_mean(name: str, config: GenerationConfig) -> str:
    """Return what a caller may have meant by a keyword that nobody knows."""
    others = ("seed", "as_batch", *HONOURED)
    known = {"max_tokens": "max_new_tokens", "n": "num_return_sequences", "stop": "stop_strings"}
    if nearest := known.get(name) or nearest_name(name, [*vars(config), *others]):
        return f"did you mean {nearest}?"
    return f"give the fields of a GenerationConfig, or {', '.join(others)}."


def params_of_call(
    llm: LLM, prompts: Any, given: Any, arguments: dict[str, Any]
) -> SamplingParams | list[SamplingParams]:
    """Return the parameters of ``llm.generate(prompts, given, **arguments)``, or of ``llm.chat``.

    Args:
        llm: the engine.
        prompts: as in ``LLM.generate``; or the messages of chats, which have no ``as_batch``.
        given: None, a ``GenerationConfig``, or one for each prompt.
        arguments: keyword arguments of HF's `generate()`, ``seed`` and ``as_batch``.

    Raises:
        TypeError: without hf_compat, as upstream would.
        VLLMValidationError: they cannot be honoured.
    """
    frontend = llm.input_processor.hf_compat
    if frontend is None:
        raise TypeError(
            f"LLM got an unexpected keyword argument {sorted(arguments)[0]!r}: the arguments of "
            "Transformers' generate() need LLM(..., hf_compat=True)."
        )
    arguments = dict(arguments)
    if (config := arguments.pop("generation_config", None)) is not None:
        if given is not None:
            raise VLLMValidationError("generation_config is given twice: leave one of them out.")
        given = config
    each = given if isinstance(given, Sequence) else [given]
    if isinstance(given, dict):
        raise VLLMValidationError(
            "generation_config is a dict: give a transformers.GenerationConfig, or its fields as "
            "keyword arguments."
        )
    if not all(config is None or isinstance(config, GenerationConfig) for config in each):
        raise VLLMValidationError(
            "Keyword arguments of generate() complete a GenerationConfig: give them with one, or "
            "alone. SamplingParams take none beside them."
        )
    as_batch = arguments.pop("as_batch", False)
    calls = [GenerateCall.of(config).updated(arguments) for config in each]
    if as_batch:
        calls = _placed(llm, prompts, calls)
    params = [frontend.to_sampling_params(call) for call in calls]
    return params if isinstance(given, Sequence) or as_batch else params[0]


def _placed(llm: LLM, prompts: Any, calls: list[GenerateCall]) -> list[GenerateCall]:
    """Give each prompt its place in an HF batch of all of them."""
    check_prompts(prompts)
    single = isinstance(prompts, str | dict) or (prompts and isinstance(prompts[0], int))
    prompts = [prompts] if single else prompts
    tokenizer = llm.get_tokenizer()
    lengths = [_num_tokens(tokenizer, prompt) for prompt in prompts]
    if len(calls) == 1:
        calls = calls * len(lengths)
    if len(calls) != len(lengths):
        raise VLLMValidationError(
            f"{len(calls)} configurations are given for {len(lengths)} prompts: give one, or one "
            "for each prompt."
        )
    return [
        replace(call, place=Place(i, len(lengths), max(lengths) - length, tokenizer.pad_token_id))
        for i, (call, length) in enumerate(zip(calls, lengths, strict=True))
    ]


def _objects(name: str, given: Any) -> list[Any]:
    """Return a caller's processors or criteria, each once, as `generate()` merges them."""
    if not isinstance(given, Sequence | None):
        raise VLLMValidationError(
            f"{name} is a {type(given).__name__}: give a list of them, as to generate().",
            parameter=name,
        )
    objects: list[Any] = []
    for one in given or []:
        if one not in objects:
            objects.append(one)
    return objects


def _token_ids(negative_prompt: Any) -> list[int] | None:
    """Return one prompt's ids, which HF takes as a tensor of one row."""
    if negative_prompt is None:
        return None
    if isinstance(negative_prompt, torch.Tensor):
        negative_prompt = negative_prompt.tolist()
    if negative_prompt and isinstance(negative_prompt[0], list):
        (negative_prompt,) = negative_prompt if len(negative_prompt) == 1 else (None,)
    if not negative_prompt or not all(isinstance(token, int) for token in negative_prompt):
        raise VLLMValidationError(
            "negative_prompt_ids must be the token ids of one prompt, which serves for all prompts "
            "of the call: call generate() once for each of several."
        )
    return list(negative_prompt)


def _num_tokens(tokenizer: Any, prompt: Any) -> int:
    if isinstance(prompt, dict):
        prompt = prompt.get("prompt_token_ids", prompt.get("prompt"))
    if isinstance(prompt, str):
        return len(tokenizer(prompt)["input_ids"])
    if isinstance(prompt, Sequence) and all(isinstance(token, int) for token in prompt):
        return len(prompt)
    raise VLLMValidationError(
        "as_batch needs prompts of text or token ids, and their lengths in an HF batch: for chats, "
        "give what the tokenizer's apply_chat_template() returns to LLM.generate()."
    )
