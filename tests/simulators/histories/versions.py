"""Do the answers fit the order that they tell themselves? Cheap: sorted by version, read once.

Invariants:
1. Nothing right is reported: a write whose outcome is unknown may have happened at any version.
2. Of histories without such writes, in which every answer tells its version, all that is wrong is
   reported: then the versions are the order, and there is only one.

Elsewhere: histories that tell no versions, and a second opinion (`search`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from simulators.histories import registers
from simulators.histories.events import Operation

__all__ = ["disorders", "pinned"]


def disorders(operations: Sequence[Operation]) -> list[str]:
    """Return what is wrong about operations on one register, a line each."""
    told = [each for each in operations if each.version is not None]
    writes = sorted(
        (each for each in told if registers.written(each) is not None), key=_version_of
    )
    places = [each.version for each in writes]
    return [
        *_doubles(writes),
        *_against_time(told, places),
        *_wrong_values(operations, told, writes, places),
    ]


def pinned(operations: Sequence[Operation]) -> list[Operation]:
    """Give writes that tell no version the one that somebody read with their value.

    Only where a read tells the version of the value itself, and no value is written twice.
    """
    seen = {
        (each.key, each.result): each.version
        for each in operations
        if each.function == "get" and each.version is not None
    }
    found = []
    for each in operations:
        version = seen.get((each.key, registers.written(each)))
        found.append(each if each.version or version is None else each._replace(version=version))
    return found


def _version_of(operation: Operation) -> Any:
    return operation.version


def _doubles(writes: Sequence[Operation]) -> Iterator[str]:
    for one, other in pairwise(writes):
        if one.version == other.version:
            yield f"two writes have one version: {one}; {other}"


def _against_time(told: Sequence[Operation], places: Sequence[Any]) -> Iterator[str]:
    """Who begins after another was answered does not come before it: counted in known writes."""
    ranks = [bisect_right(places, each.version) for each in told]
    moments = [(each.invoked, 0, number) for number, each in enumerate(told)]
    moments += [
        (each.returned, 1, number) for number, each in enumerate(told) if each.returned is not None
    ]
    latest = -1
    for _, is_end, number in sorted(moments):
        if is_end:
            if latest < 0 or ranks[number] > ranks[latest]:
                latest = number
        elif latest >= 0:
            writes = registers.written(told[number]) is not None
            if ranks[number] < ranks[latest] + writes:
                yield f"{told[number]} comes after {told[latest]}, and tells no later version"


def _wrong_values(
    operations: Sequence[Operation],
    told: Sequence[Operation],
    writes: Sequence[Operation],
    places: Sequence[Any],
) -> Iterator[str]:
    unknown = [
        (registers.written(each), each.invoked)
        for each in operations
        if each.version is None and registers.written(each) is not None
    ]
    values: dict[Any, str] = {}
    for each in told:
        expected = None if each.is_open else registers.expected_before(each)
        if expected is None:
            continue
        value, was_there = expected
        at = bisect_right(places, each.version)
        if registers.written(each) is not None:
            at = bisect_left(places, each.version)
        stood = registers.written(writes[at - 1]) if at else registers.EMPTY
        certain = at > 0 and places[at - 1] == each.version
        if (value == stood) != was_there and (
            certain or not _explained(each, value, was_there, unknown)
        ):
            yield f"{each}, where the register is {stood!r}"
        if each.function == "get" and values.setdefault(each.version, value) != value:
            yield f"{each} differs from {values[each.version]!r}, read at the same version"


def _explained(
    this: Operation, value: str, was_there: bool, unknown: Sequence[tuple[str | None, int]]
) -> bool:
    """Return whether a write of unknown outcome or version may have come in between."""
    end = this.returned
    assert end is not None
    return any((written == value) == was_there for written, invoked in unknown if invoked <= end)
