"""What continues once the disk, a replica or the shell has answered.

Invariants:
1. Disk effects and requests have numbers that are never reused in a process.
2. A request has one ticket and one answer.

Elsewhere: the requests (the parts of `Pool`), the answers (the shell).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["Continuations"]


class Continuations:
    """By the number of the disk effect, or the ticket of the question."""

    def __init__(self) -> None:
        self._last_number = 0
        self._after_disk: dict[int, Callable[[], None]] = {}
        self._asked: dict[int, Callable[[Any], None]] = {}
        self._reads: dict[int, None] = {}

    @property
    def questions(self) -> int:
        """How many questions are not answered yet."""
        return len(self._asked)

    def next_number(self, then: Callable[[], None] | None = None) -> int:
        """Return the number of a disk effect; `then` runs when it is durable."""
        self._last_number += 1
        self._after_disk[self._last_number] = then or _nothing
        return self._last_number

    def on_disk_done(self, number: int) -> None:
        """Go on with what was waiting for the disk."""
        self._after_disk.pop(number)()

    def next_ticket(self, then: Callable[[Any], None], *, is_read: bool = False) -> int:
        """Return the ticket of a question; `then` takes the answer.

        `is_read`: the answer changes nothing, so it need not wait while the disk is busy.
        """
        self._last_number += 1
        self._asked[self._last_number] = then
        if is_read:
            self._reads[self._last_number] = None
        return self._last_number

    def is_read(self, ticket: int) -> bool:
        """Return whether the answer to this question changes nothing."""
        return ticket in self._reads

    def on_answer(self, ticket: int, answer: object) -> None:
        """Go on with what was waiting for an answer; a second answer is ignored."""
        then = self._asked.pop(ticket, None)
        self._reads.pop(ticket, None)
        if then is not None:
            then(answer)

    def check_invariants(self) -> None:
        """Assert what is true after every event."""
        numbers = [*self._after_disk, *self._asked]
        assert len(set(numbers)) == len(numbers), "a number is used twice"
        assert max(numbers, default=0) <= self._last_number, "a number was never given"
        assert self._reads.keys() <= self._asked.keys(), "a question is kept that was answered"


def _nothing() -> None: ...
