"""What compiles the grammars of structured outputs in an engine with hf_compat.

Why: Upstream's ``StructuredOutputManager`` has one backend for all requests: the one that its first
  request needs. With ``backend="auto"`` a request is checked with the backend that can follow it
  and compiled with the manager's, so that a schema that only llguidance knows is not followed after
  a first one for xgrammar. Here each grammar is compiled by the backend that can follow it.
Upstream status: Bug in 0.32.0, to be reported (upstream-reports/structured-outputs-backend.md).
Exit condition: Upstream compiles each grammar with the backend that it was checked with.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any

import vllm.envs as envs
from vllm.hf_compat.grammars.params import is_tried
from vllm.hf_compat.grammars.process import Outcome, Trial
from vllm.hf_compat.grammars.trials import Trials
from vllm.hf_compat.grammars.watch import WatchedGrammar
from vllm.utils.mistral import is_mistral_tokenizer
from vllm.v1.structured_output.backend_guidance import (
    GuidanceBackend,
    GuidanceGrammar,
    has_guidance_unsupported_json_features,
)
from vllm.v1.structured_output.backend_types import (
    StructuredOutputBackend,
    StructuredOutputGrammar,
    StructuredOutputOptions,
)
from vllm.v1.structured_output.backend_xgrammar import (
    XgrammarBackend,
    has_xgrammar_unsupported_json_features,
)
from vllm.v1.structured_output.utils import grammar_is_likely_lark

if TYPE_CHECKING:
    import torch

    from vllm.config import VllmConfig
    from vllm.v1.request import Request
    from vllm.v1.structured_output import StructuredOutputManager

_MOST_BYTES = 1 << 30
"""Of memory that the compilation of one grammar may take."""

_LIMITS = (
    "A grammar may take 1 GiB, as many seconds of one core as the environment variable "
    "VLLM_REGEX_COMPILATION_TIMEOUT_S says, and a tenth of one for each token: ask for a simpler "
    "one."
)

_MOST_KNOWN = 10_000
"""Outcomes of trials that are kept: of 32 bytes, and a reason of at most 500 characters."""

_THREADS = 4
"""Grammars that are tried side by side: most of the time a thread waits for a trial."""

_MOMENT_S = 0.02
"""Seconds for which an engine that can do nothing but wait for grammars sees no new request."""

_NICENESS = 5
"""Of the threads that compile what has passed: the model's come first."""


def install_backend(manager: StructuredOutputManager, vllm_config: VllmConfig) -> None:
    """Let a manager that has no backend yet compile with this module's, unless the engine was told
    to use another one than xgrammar.

    Args:
        manager: of the engine.
        vllm_config: of the engine.
    """
    model_config = vllm_config.model_config
    if model_config.skip_tokenizer_init or not is_tried(vllm_config.structured_outputs_config):
        return
    manager.backend = GrammarBackend(
        vllm_config, tokenizer=manager.tokenizer, vocab_size=model_config.get_vocab_size()
    )
    manager.executor.shutdown()
    manager.executor = ThreadPoolExecutor(_THREADS, "grammars", initializer=_step_back)


def wait_for_a_grammar(requests: Iterable[Request]) -> None:
    """Wait until the grammar of one of some requests is compiled, or a moment has passed.

    Upstream's engine takes a thousand empty steps a second meanwhile, through all its workers.

    Args:
        requests: that cannot run yet, for whatever reason.
    """
    structured = [one.structured_output_request for one in requests]
    waiting = [one._grammar for one in structured if one and isinstance(one._grammar, Future)]
    if waiting:
        wait(waiting, _MOMENT_S, FIRST_COMPLETED)


def _step_back() -> None:
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)


class RefusedError(ValueError):
    """A grammar is beyond the limits of a trial, or says what nobody follows."""


class GrammarBackend(StructuredOutputBackend):
    """xgrammar behind trials; llguidance for what xgrammar cannot follow, with ``"auto"``.

    Takes what the manager gives every backend. Nothing is loaded before the first grammar comes.
    """

    def __init__(self, vllm_config: VllmConfig, tokenizer: Any, vocab_size: int) -> None:
        super().__init__(vllm_config, tokenizer, vocab_size)
        self._lock = threading.Lock()
        self._xgrammar: XgrammarBackend | None = None
        self._guidance: GuidanceBackend | None = None

    def compile_grammar(
        self,
        request_type: StructuredOutputOptions,
        grammar_spec: str,
        stop_token_ids: set[int] | None = None,
    ) -> StructuredOutputGrammar:
        """As in ``StructuredOutputBackend``.

        Raises:
            ValueError: the grammar is none, or beyond the limits, or nobody can follow it.
        """
        arguments = request_type, grammar_spec, stop_token_ids
        try:
            _check_xgrammar_supports(request_type, grammar_spec, self.tokenizer)
            if request_type == StructuredOutputOptions.REGEX:
                # Upstream counts the seconds of a regex by the clock, and a trial may have to wait.
                self._get_xgrammar().compiler.check("compile_regex", (grammar_spec,), {})
            return WatchedGrammar(self._get_xgrammar().compile_grammar(*arguments))
        except RefusedError:
            raise
        except ValueError as error:
            if not self._may_use_guidance(request_type, grammar_spec):
                raise
            grammar = self._get_guidance().compile_grammar(*arguments)
            assert isinstance(grammar, GuidanceGrammar)
            if grammar.ll_matcher.is_error():
                raise error from None
            return WatchedGrammar(grammar)

    def _get_xgrammar(self) -> XgrammarBackend:
        with self._lock:
            if self._xgrammar is None:
                backend = XgrammarBackend(self.vllm_config, self.tokenizer, self.vocab_size)
                backend.compiler = _TriedCompiler(backend.compiler)
                self._xgrammar = backend
            return self._xgrammar

    def _get_guidance(self) -> GuidanceBackend:
        with self._lock:
            if self._guidance is None:
                self._guidance = GuidanceBackend(self.vllm_config, self.tokenizer, self.vocab_size)
            return self._guidance

    def _may_use_guidance(self, request_type: StructuredOutputOptions, grammar_spec: str) -> bool:
        return (
            self.vllm_config.structured_outputs_config.backend == "auto"
            and GuidanceBackend.is_tokenizer_supported(self.tokenizer)
            and len(self.tokenizer) <= self.vocab_size  # or its masks would be wider
            and not (
                request_type == StructuredOutputOptions.JSON
                and has_guidance_unsupported_json_features(json.loads(grammar_spec))
            )
        )

    def allocate_token_bitmask(self, max_num_seqs: int) -> torch.Tensor:
        """As in ``StructuredOutputBackend``; both backends fill masks of this kind."""
        return self._get_xgrammar().allocate_token_bitmask(max_num_seqs)

    def destroy(self) -> None:
        """As in ``StructuredOutputBackend``."""
        if self._xgrammar is not None:
            self._xgrammar.compiler.close()


def _check_xgrammar_supports(
    request_type: StructuredOutputOptions, grammar_spec: str, tokenizer: Any
) -> None:
    """Refuse what xgrammar would take without following all of it.

    Raises:
        ValueError: says what it is.
    """
    if request_type == StructuredOutputOptions.JSON:
        try:
            schema = json.loads(grammar_spec)
        except ValueError as error:
            raise ValueError(f"structured_outputs.json is no JSON: {error}.") from None
        if (elsewhere := _reference_elsewhere(schema)) is not None:
            raise RefusedError(
                f"The JSON schema refers to {elsewhere!r:.80}, which nobody fetches: put what is "
                "meant under $defs, and refer to #/$defs/..."
            )
        if has_xgrammar_unsupported_json_features(schema):
            raise ValueError(
                "The JSON schema has keywords, or combinations of them, that no structured outputs "
                "backend in use follows: --structured-outputs-config.backend can name another one."
            )
    elif request_type == StructuredOutputOptions.GRAMMAR and is_mistral_tokenizer(tokenizer):
        if tokenizer.is_tekken and grammar_is_likely_lark(grammar_spec):
            raise ValueError("xgrammar does not know Mistral's special tokens.")


_EXAMPLES = {"const", "default", "enum", "examples"}
"""Keywords of a schema whose values are no schemas."""


def _reference_elsewhere(schema: Any) -> str | None:
    """Return a ``$ref`` of a schema that is not to the schema itself; backends ignore those."""
    waiting = [schema]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            reference = one.get("$ref")
            if isinstance(reference, str) and not reference.startswith("#"):
                return reference
            waiting.extend(value for name, value in one.items() if name not in _EXAMPLES)
        elif isinstance(one, list):
            waiting.extend(one)
    return None


class _TriedCompiler:
    """A ``xgrammar.GrammarCompiler`` that refuses what does not pass a trial.

    Args:
        compiler: compiles what has passed.
    """

    def __init__(self, compiler: Any) -> None:
        self._compiler = compiler
        info = compiler.compile_builtin_json_grammar().tokenizer_info
        self._trials = Trials(info.serialize_json())
        self._known: OrderedDict[bytes, Outcome] = OrderedDict()

    def __getattr__(self, method: str) -> Callable[..., Any]:
        """Return a method that compiles, behind a trial."""
        compile_it = getattr(self._compiler, method)

        def compile_what_passes(*args: Any, **kwargs: Any) -> Any:
            self.check(method, args, kwargs)
            return compile_it(*args, **kwargs)

        return compile_what_passes

    def close(self) -> None:
        """End the process of the trials."""
        self._trials.close()

    def check(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Try a grammar, unless it was tried before.

        Raises:
            RefusedError: it is beyond a limit.
            ValueError: xgrammar's reason against it.
        """
        key = hashlib.sha256(pickle.dumps((method, args, kwargs))).digest()
        if key not in self._known:
            seconds = envs.VLLM_REGEX_COMPILATION_TIMEOUT_S
            self._known[key] = self._trials.run(Trial(method, args, kwargs, seconds, _MOST_BYTES))
            while len(self._known) > _MOST_KNOWN:
                self._known.popitem(last=False)
        if (outcome := self._known[key]) is not None:
            reason, is_limit = outcome
            sentence = f"structured_outputs cannot be followed: {reason}."
            raise RefusedError(f"{sentence} {_LIMITS}") if is_limit else ValueError(sentence)
