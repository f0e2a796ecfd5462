"""What numbers given out one by one may be: `next` key gets one, `count` key reads the last.

The first number is 1; none is given twice, however often it is asked for: counters that count by
one, names in sequence.

Elsewhere: values that are set (`registers`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from simulators.histories.events import Operation

__all__ = ["disorders"]


def disorders(operations: Sequence[Operation]) -> Iterator[str]:
    """Yield what is wrong about the numbers of one key, a line each."""
    told = [each for each in operations if each.returned is not None]
    yield from _doubles(told)
    yield from _against_time(told)
    yield from _out_of_nothing(operations, told)


def _doubles(told: Sequence[Operation]) -> Iterator[str]:
    owners: dict[int, Operation] = {}
    for each in told:
        if each.function == "next" and owners.setdefault(each.result, each) is not each:
            yield f"{each}, a number that was given to {owners[each.result]}"


def _against_time(told: Sequence[Operation]) -> Iterator[str]:
    """Who begins after another was answered is told more, or as much if it only reads."""
    moments = [(each.invoked, 0, number) for number, each in enumerate(told)]
    moments += [(each.returned or 0, 1, number) for number, each in enumerate(told)]
    latest: Operation | None = None
    for _, is_end, number in sorted(moments):
        each = told[number]
        if is_end:
            if latest is None or each.result > latest.result:
                latest = each
        elif latest is not None and each.result < latest.result + (each.function == "next"):
            yield f"{each} comes after {latest}"


def _out_of_nothing(operations: Sequence[Operation], told: Sequence[Operation]) -> Iterator[str]:
    """Nobody is told more than were asked for until then: what was done twice shows here."""
    asked = sorted(each.invoked for each in operations if each.function == "next")
    for each in told:
        possible = bisect_left(asked, each.returned or 0)
        if each.result > possible:
            yield f"{each}, where {possible} at most were asked for"
