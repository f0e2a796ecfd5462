"""Is there an order in which the operations on one object can have happened, one after the other?

The search of Wing and Gong (1993) with the memory of Lowe (2017): of the operations that began
before the first end of one that has not happened yet, let one happen; where none can, take back
the last. A set of operations that happened, with the state they led to, is tried once. What only
tells of the state happens as soon as it can; of writers, who ends first is tried first; a value
that somebody has yet to see is not overwritten if nobody is left to write it again.

Invariants:
1. YES and NO are certain; UNDECIDED is said after `STEPS_MAX` steps, never by the clock, so that a
   seed's verdict is always the same.
2. What is open may happen at any time after its call, or never. It is tried only where somebody
   may see it: who wants its value, or is refused next as the register had another one.
3. A call and an end at the same time overlap.

Elsewhere: what an operation does to the state (`registers`), what belongs to one object (`check`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Final, NamedTuple

from simulators.histories import registers
from simulators.histories.events import Operation

__all__ = ["STEPS_MAX", "Answer", "Found", "search"]

STEPS_MAX = 1_000_000
"""Steps of one search: ten to thirty seconds."""
_HEAD: Final = 0


class Answer(Enum):
    """Whether there is such an order."""

    YES = "yes"
    NO = "no"
    UNDECIDED = "undecided"


class _Step(NamedTuple):
    """A writer that happened, and what was so before it."""

    call: int
    state: str
    happened: int
    observed: list[int]
    untried: list[int]


class Found(NamedTuple):
    """What a search came to; `stuck` is what could not happen in the longest order found."""

    answer: Answer
    steps: int
    stuck: str = ""


def search(operations: Sequence[Operation], steps_max: int = STEPS_MAX) -> Found:
    """Look for an order of operations on one register."""
    useful = [each for each in operations if not each.is_open or each.function != "get"]
    return _Search(useful).run(steps_max)


class _Search:
    """One walk. Places are 0, the head, then calls and ends in order of time, doubly linked."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        self.operations = sorted(operations, key=lambda each: each.invoked)
        moments = [(each.invoked, 0, number) for number, each in enumerate(self.operations)]
        moments += [
            (each.returned, 1, number)
            for number, each in enumerate(self.operations)
            if each.returned is not None
        ]
        moments.sort()
        count = len(moments)
        self.number = [-1] + [number for _, _, number in moments]
        self.end_of = [-1] * (count + 1)  # of a call: 0 if it has none; of the head and an end: -1
        calls: dict[int, int] = {}
        for place in range(1, count + 1):
            number = self.number[place]
            if number in calls:
                self.end_of[calls[number]] = place
            else:
                calls[number], self.end_of[place] = place, 0
        self.wants = [registers.wanted(each) for each in self.operations]
        self.writes = [registers.written(each) for each in self.operations]
        self.awaits = [registers.awaited(each) for each in self.operations]
        self.refused = [registers.is_refusal(each) for each in self.operations]
        self.wanted = Counter(self.wants)
        self.awaited = Counter(self.awaits)
        self.supply = Counter(self.writes)
        self.following = [*range(1, count + 1), 0]  # after the last comes the head
        self.before = [count, *range(count)]

    def run(self, steps_max: int) -> Found:
        """Walk until all that was answered has happened, or nothing is left to try."""
        state, steps, furthest, stuck = registers.EMPTY, 0, -1, ""
        path: list[_Step] = []
        tried: set[tuple[int, int, str]] = set()
        observed = self._observe(state)
        happened = self._bits(observed)
        untried = self._writers()
        while not self._is_done():
            steps += 1
            if steps > steps_max:
                return Found(Answer.UNDECIDED, steps_max, stuck)
            if not untried:
                if len(path) > furthest:
                    furthest, stuck = len(path), self._describe(state, path)
                self._put_back(observed)
                if not path:
                    return Found(Answer.NO, steps, stuck)
                call, state, happened, observed, untried = path.pop()
                self._put_back([call])
                continue
            call = untried.pop()
            next_state = self._after(state, self.number[call])
            if next_state is None:
                continue
            self._lift(call)
            next_observed = self._observe(next_state)
            next_happened = happened | self._bits([call, *next_observed])
            lost: bool = next_state != state and self.wanted[state] > 0 == self.supply[state]
            if not lost and _is_new(tried, next_happened, next_state):
                path.append(_Step(call, state, happened, observed, untried))
                state, happened, observed = next_state, next_happened, next_observed
                untried = self._writers()
            else:
                self._put_back([call, *next_observed])
        return Found(Answer.YES, steps)

    def _is_done(self) -> bool:
        """Whether only what is open is left."""
        place = self.following[_HEAD]
        while self.end_of[place] == 0:
            place = self.following[place]
        return place == _HEAD

    def _window(self) -> Iterator[int]:
        """Yield the calls that may happen next: those before the first end."""
        place = self.following[_HEAD]
        while self.end_of[place] >= 0:
            yield place
            place = self.following[place]

    def _observe(self, state: str) -> list[int]:
        """Have happen at once what only tells of this state: nothing is gained by waiting."""
        lifted = []
        for call in self._window():
            number = self.number[call]
            if self.writes[number] is None and self._after(state, number) == state:
                self._lift(call)
                lifted.append(call)
        return lifted

    def _writers(self) -> list[int]:
        """Return the writers that may happen next, who ends first last, who is open first."""
        window = list(self._window())
        refused = any(self.refused[self.number[call]] for call in window)
        found = [
            call for call in window
            if (value := self.writes[self.number[call]]) is not None
            and (self.end_of[call] or refused or self.awaited[value])
        ]  # fmt: skip
        return sorted(found, key=lambda call: -self.end_of[call] or -len(self.end_of))

    def _after(self, state: str, number: int) -> str | None:
        return registers.after(state, self.operations[number])

    def _bits(self, calls: Sequence[int]) -> int:
        bits = 0
        for call in calls:
            bits |= 1 << self.number[call]
        return bits

    def _lift(self, call: int) -> None:
        """Take out a call and its end; the end first, so that the call knows what follows."""
        self._count(call, -1)
        for place in (self.end_of[call], call):
            if place:
                before, following = self.before[place], self.following[place]
                self.following[before], self.before[following] = following, before

    def _put_back(self, calls: Sequence[int]) -> None:
        """Undo lifts, the last first; a lifted place still knows its neighbours."""
        for call in reversed(calls):
            self._count(call, 1)
            for place in (call, self.end_of[call]):
                if place:
                    self.following[self.before[place]] = place
                    self.before[self.following[place]] = place

    def _count(self, call: int, by: int) -> None:
        number = self.number[call]
        self.wanted[self.wants[number]] += by
        self.awaited[self.awaits[number]] += by
        self.supply[self.writes[number]] += by

    def _describe(self, state: str, path: Sequence[_Step]) -> str:
        operations, number = self.operations, self.number
        latest = [str(operations[number[step.call]]) for step in path[-3:]]
        left = (place for place in _places(self.following) if self.end_of[place] < 0)
        this = operations[number[next(left)]]
        return f"{this} cannot be: the register is {state!r} after the writes {latest}"


def _places(following: Sequence[int]) -> Iterator[int]:
    place = following[_HEAD]
    while place != _HEAD:
        yield place
        place = following[place]


def _is_new(tried: set[tuple[int, int, str]], happened: int, state: str) -> bool:
    """Note this set and state; the lowest that happened without a gap are told by their number."""
    lowest = (~happened & (happened + 1)).bit_length() - 1
    mark = lowest, happened >> lowest, state
    if mark in tried:
        return False
    tried.add(mark)
    return True
