"""Trials of grammars, asked for from the engine's process (`process` runs them)."""

from __future__ import annotations

import itertools
import os
import socket
import subprocess
import sys
import threading
from concurrent.futures import Future
from contextlib import suppress
from multiprocessing.connection import Connection

from vllm.hf_compat.grammars import process
from vllm.hf_compat.grammars.process import Outcome, Trial


class Trials:
    """The process of trials, which is started when the first one is asked for, and again if it
    should end. Threads may ask side by side.

    Args:
        vocabulary: ``TokenizerInfo.serialize_json()``.
    """

    def __init__(self, vocabulary: str) -> None:
        self._vocabulary = vocabulary
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._process: _Process | None = None

    def run(self, trial: Trial) -> Outcome:
        """Return what was wrong with a grammar."""
        with self._lock:
            if self._process is None or self._process.has_ended:
                self._process = _Process(self._vocabulary)
            answer = self._process.ask(next(self._numbers), trial)
        return answer.result()

    def close(self) -> None:
        """End the process; trials that run end with a reason."""
        with self._lock:
            if self._process is not None:
                self._process.end()
                self._process = None


class _Process:
    """One process, with a thread that reads what it says."""

    def __init__(self, vocabulary: str) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._popen = subprocess.Popen(
                # Without -P its folder would come before the standard library.
                [sys.executable, "-P", process.__file__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
        self._socket = ours
        self._connection = Connection(os.dup(ours.fileno()))
        self._waiting: dict[int, Future[Outcome]] = {}
        self._lock = threading.Lock()
        self.has_ended = False
        self._connection.send(vocabulary)
        threading.Thread(target=self._read, name="grammar-trials", daemon=True).start()

    def ask(self, number: int, trial: Trial) -> Future[Outcome]:
        """Send a trial; the future has its outcome."""
        answer: Future[Outcome] = Future()
        with self._lock:
            if self.has_ended:
                answer.set_result(_ENDED)
                return answer
            self._waiting[number] = answer
        with suppress(OSError):  # the reader finds the same, and answers
            # Its class has another name over there.
            self._connection.send((number, tuple(vars(trial).values())))
        return answer

    def end(self) -> None:
        """Let it end; the reader answers those that wait."""
        self._socket.shutdown(socket.SHUT_RDWR)

    def _read(self) -> None:
        """Answer until the process ends, then all that still wait."""
        try:
            while True:
                number, outcome = self._connection.recv()
                self._waiting.pop(number).set_result(outcome)
        except (EOFError, OSError):
            pass
        with self._lock:
            self.has_ended = True
        for answer in self._waiting.values():
            answer.set_result(_ENDED)
        self._connection.close()
        self._socket.close()
        self._popen.wait()


_ENDED: Outcome = "the process that tries grammars has ended, send the request again", True
