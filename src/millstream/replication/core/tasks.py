"""Runs generators that ask and wait, as many as there are, without a loop or a clock.

A task yields `Ask` or `Pause` and is sent what answers it; an error is thrown into it. What it
returns, or raises, is handed to who spawned it.

Invariants:
1. Every ticket that was given out is answered once, or was given up.
2. After `close` nothing runs any more.

Elsewhere: tasks themselves (`starting`, `batches`, `checkpointing`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Final, NamedTuple, TypeVar

from millstream.errors import MillstreamError, RemoteProtocolError
from millstream.replication.core.asking import Ask, Pause, Request, Side

__all__ = ["ATTEMPTS_MAX", "RETRY_MIN_MS", "Effect", "Steps", "Tasks", "asked", "may_go_well"]

Value = TypeVar("Value")
Steps = Generator[Ask | Pause, Any, Value]
Done = Callable[[Any, MillstreamError | None], None]
ATTEMPTS_MAX: Final = 5
"""Most attempts of one request."""
RETRY_MIN_MS: Final = 250
"""Delay before the second attempt. It doubles before each further one."""


class Effect(NamedTuple):
    """Something to do, whose end is told with the ticket."""

    ticket: int
    step: Ask | Pause


def may_go_well(error: MillstreamError) -> bool:
    """Whether the same request may go well later.

    An answer without the promised form counts, too: a proxy may have sent it or cut it.
    """
    return error.retry != "never" or isinstance(error, RemoteProtocolError)


def asked(side: Side, request: Request, attempts: int = ATTEMPTS_MAX) -> Steps[Any]:
    """Ask, and again if the error says that this may help.

    Raises:
        MillstreamError: of the last attempt.
    """
    wait_ms = RETRY_MIN_MS
    for attempt in range(1, attempts + 1):
        try:
            return (yield Ask(side, request))
        except MillstreamError as error:
            if not may_go_well(error) or attempt == attempts:
                raise
        yield Pause(wait_ms)
        wait_ms *= 2
    raise AssertionError("the last attempt returns or raises")


class Tasks:
    """The tasks of one run."""

    def __init__(self) -> None:
        self._tickets = 0
        self._waiting: dict[int, tuple[Steps[Any], Done]] = {}
        self._effects: list[Effect] = []

    def spawn(self, task: Steps[Any], done: Done) -> None:
        """Begin a task; `done` hears what it returned or raised."""
        self._go_on(task, done, lambda: next(task))

    def answer(self, ticket: int, value: Any) -> None:
        """What a ticket asked for is here."""
        if found := self._waiting.pop(ticket, None):
            task, done = found
            self._go_on(task, done, lambda: task.send(value))

    def fail(self, ticket: int, error: MillstreamError) -> None:
        """What a ticket asked for was refused."""
        if found := self._waiting.pop(ticket, None):
            task, done = found
            self._go_on(task, done, lambda: task.throw(error))

    def _go_on(self, task: Steps[Any], done: Done, resume: Callable[[], Ask | Pause]) -> None:
        try:
            step = resume()
        except StopIteration as end:
            done(end.value, None)
        except MillstreamError as error:
            done(None, error)
        else:
            self._tickets += 1
            self._waiting[self._tickets] = task, done
            self._effects.append(Effect(self._tickets, step))

    def close(self) -> None:
        """Give up all tasks."""
        for task, _ in self._waiting.values():
            task.close()
        self._waiting.clear()
        self._effects.clear()

    def take(self) -> list[Effect]:
        """Return what is to be done since the last time."""
        effects, self._effects = self._effects, []
        return effects
