"""The process in which grammars are tried: run as a script, with a socket's number as argument.

It imports xgrammar alone, has no threads, and forks for each trial: a child that is ended at its
limits takes nothing with it, and the next one starts in milliseconds. It ends when the socket does.
"""

from __future__ import annotations

import ctypes
import os
import re
import resource
import signal
import sys
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any, cast

_NICENESS = 5
"""Of a trial: a model's threads come first."""

_PR_SET_PDEATHSIG = 1
"""Of ``prctl``: what a process gets when its parent has ended."""

_PATIENCE = 20
"""Seconds that a trial may last for each one of computing; it may have to wait for a core."""

MOST_SECONDS_OF_A_STEP = 0.1
"""Of one core, for the tokens that may come next or for one that has come."""

TOO_SLOW = "for one of its tokens it takes longer than a grammar may, since it is ambiguous"

_NUM_TOKENS = 64
"""That a trial follows a grammar for."""

_LONGEST_REASON = 500  # xgrammar quotes the grammar
_TIME_AND_PLACE = re.compile(r"\[[\d:]+\] \S+:\d+: ")
"""What xgrammar's messages begin with; a refusal is the same at any time of day."""

Outcome = tuple[str, bool] | None
"""What was wrong, and whether it was a limit of the trial; None for nothing."""


@dataclass(frozen=True)
class Trial:
    """What is to be compiled, and within which limits.

    Attributes:
        method: of ``xgrammar.GrammarCompiler``.
        args: of the method.
        kwargs: of the method.
        seconds: of one core; 0 has no limit.
        num_bytes: of memory, beside what xgrammar and the vocabulary take.
    """

    method: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    seconds: int
    num_bytes: int


def serve(parent: Connection) -> None:
    """Try what comes, several side by side, until nobody is at the other end.

    The first message is the vocabulary (``TokenizerInfo.serialize_json``); each other one is a
    number and the fields of a `Trial`, and is answered by the number and its `Outcome`.
    """
    from xgrammar import TokenizerInfo

    vocabulary = TokenizerInfo.deserialize_json(parent.recv())
    words = vocabulary.decoded_vocab
    longest_first = sorted(range(len(words)), key=lambda token: -len(words[token]))
    running: dict[Connection, tuple[int, int]] = {}
    while True:
        for ready in cast("list[Connection]", wait([parent, *running])):
            if ready is parent:
                try:
                    number, fields = parent.recv()
                except EOFError:
                    for _, pid in running.values():
                        os.kill(pid, signal.SIGKILL)
                    return
                result, pid = _start(Trial(*fields), vocabulary, longest_first, [parent, *running])
                running[result] = number, pid
            else:
                number, pid = running.pop(ready)
                parent.send((number, _outcome(ready, pid)))


def _start(
    trial: Trial, vocabulary: Any, tokens: list[int], inherited: list[Connection]
) -> tuple[Connection, int]:
    """Fork a child for a trial; return where its result comes from, and its number."""
    result, to_result = Pipe(duplex=False)
    pid = os.fork()
    if pid == 0:
        for one in [result, *inherited]:
            one.close()
        to_result.send(_try(trial, vocabulary, tokens))
        os._exit(0)
    to_result.close()
    return result, pid


def _try(trial: Trial, vocabulary: Any, tokens: list[int]) -> Outcome:
    from xgrammar import GrammarCompiler

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.nice(_NICENESS)
    if trial.seconds:
        resource.setrlimit(resource.RLIMIT_CPU, (trial.seconds, trial.seconds))
        signal.alarm(_PATIENCE * trial.seconds)
    resource.setrlimit(resource.RLIMIT_DATA, (_data_bytes() + trial.num_bytes,) * 2)
    compiler = GrammarCompiler(vocabulary, max_threads=1, cache_enabled=False)
    try:
        compiled = getattr(compiler, trial.method)(*trial.args, **trial.kwargs)
    except Exception as error:
        text = _TIME_AND_PLACE.sub("", str(error)).strip().rstrip(".") or type(error).__name__
        if isinstance(error, MemoryError) or "bad_alloc" in text:
            return "it needs more memory than a grammar may have", True
        return text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]} ...", False
    return None if _is_fast(compiled, tokens) else (TOO_SLOW, True)


def _is_fast(compiled: Any, tokens: list[int]) -> bool:
    """Follow a grammar with the first of `tokens` that it allows at each step."""
    from xgrammar import GrammarMatcher, allocate_token_bitmask

    matcher = GrammarMatcher(compiled)
    mask = allocate_token_bitmask(1, len(tokens))
    bits = mask.numpy()[0]
    for _ in range(_NUM_TOKENS):
        begin = time.process_time()
        matcher.fill_next_token_bitmask(mask)
        allowed = (token for token in tokens if bits[token // 32] >> token % 32 & 1)
        token = next(allowed, None)
        if token is None or not matcher.accept_token(token) or matcher.is_terminated():
            return True
        if time.process_time() - begin > MOST_SECONDS_OF_A_STEP:
            return False
    return True


def _outcome(result: Connection, pid: int) -> Outcome:
    """Return what a child has said, or why it has said nothing."""
    try:
        return cast(Outcome, result.recv())
    except EOFError:
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        pid = 0
    finally:
        result.close()
        if pid:
            os.waitpid(pid, 0)
    if -status in (signal.SIGXCPU, signal.SIGKILL, signal.SIGALRM):
        return "it takes longer to compile than a grammar may", True
    return f"xgrammar does not survive it (status {status})", True


def _data_bytes() -> int:
    """Return the memory of this process that ``RLIMIT_DATA`` counts."""
    with open("/proc/self/status") as status:
        kilobytes = next(line.split()[1] for line in status if line.startswith("VmData"))
    return int(kilobytes) * 1024


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's is for the server
    serve(Connection(int(sys.argv[1])))
