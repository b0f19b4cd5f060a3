"""Which waiting requests may start in a step, where some of them take several seats of the batch.

A search takes a seat for each beam and a guided request two, for as long as it runs. Three rules
keep any kind of request from waiting without end:

- Requests of several rows leave a quarter of the seats to others, however many they are. Only one
  that runs alone among its kind may have more, if no request of one row waits when it starts.
- A request of one row overtakes those that wait for their share. Where only seats are missing,
  those that become free are kept for the request of several rows that came first.
- Nothing starts any more before the first of them if as many others have overtaken it as there are
  seats. Those behind it begin to count when it has started, so that a single request waits for one
  of them, and not for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.v1.request import Request


@dataclass
class Load:
    """What is taken of a step.

    Attributes:
        rows: of all requests that run.
        shared: of those of several rows.
        tokens: that guides bring when they come in.
    """

    rows: int = 0
    shared: int = 0
    tokens: int = 0


@dataclass(frozen=True)
class Demand:
    """What a waiting request takes.

    Attributes:
        request: itself.
        rows: seats.
        tokens: that its guide brings.
    """

    request: Request
    rows: int
    tokens: int


@dataclass
class Plan:
    """What a step may start with.

    Attributes:
        first: the requests of several rows that start, in their order.
        held: the requests that wait for another step, in their order.
        kept: seats that are kept for one of these.
        tokens: that guides bring in this step at most.
    """

    first: list[Request] = field(default_factory=list)
    held: list[Request] = field(default_factory=list)
    kept: int = 0
    tokens: int = 0


class Seats:
    """The seats of a scheduler.

    Args:
        num_seats: rows of a step at most.
        num_tokens: of a step at most.
    """

    def __init__(self, num_seats: int, num_tokens: int) -> None:
        self._num_seats = num_seats
        self._num_shared = num_seats - max(1, num_seats // 4)
        self._num_tokens = num_tokens
        self._first_held: str | None = None
        self._num_overtaken = 0
        self._num_before = 0

    def plan(self, waiting: Sequence[Demand], running: Load) -> Plan:
        """Return what may start; `running` becomes what is taken then.

        Args:
            waiting: all that do, in their order.
            running: of the requests that run.
        """
        plan = Plan()
        has_singles = any(one.rows == 1 for one in waiting)
        is_closed = False  # to all that come after
        most_tokens = self._num_tokens - running.rows - 2
        for one in waiting:
            if one.rows == 1:
                continue
            is_due = (
                one.request.request_id == self._first_held
                and self._num_overtaken >= self._num_seats
            )
            has_share = running.shared + one.rows <= self._num_shared or (
                running.shared == 0 and (is_due or not has_singles)
            )
            fits = running.rows + plan.kept + one.rows <= self._num_seats and (
                running.tokens + one.tokens <= most_tokens
                and running.rows + one.rows + running.tokens + one.tokens <= self._num_tokens
            )
            if not is_closed and has_share and fits:
                plan.first.append(one.request)
                running.rows += one.rows
                running.shared += one.rows
                running.tokens += one.tokens
                if one.tokens:  # several of them leave others half of the step
                    most_tokens = self._num_tokens // 2
                continue
            if not plan.held:
                self._num_before = len(plan.first)
            plan.held.append(one.request)
            is_closed |= is_due
            if has_share and not plan.kept:
                plan.kept = one.rows
        plan.tokens = running.tokens
        if is_closed or running.rows + plan.kept >= self._num_seats:
            started = set(plan.first)
            plan.held = [one.request for one in waiting if one.request not in started]
        return plan

    def overtake(self, held: Sequence[Request], number: int) -> None:
        """Count the requests that started in a step while others were held back.

        Args:
            held: of several rows, all that wait, in their order.
            number: of those that started, of any kind.
        """
        first = held[0].request_id if held else None
        if first != self._first_held:
            self._first_held, self._num_overtaken = first, 0
        if held:
            self._num_overtaken += max(0, number - self._num_before)
