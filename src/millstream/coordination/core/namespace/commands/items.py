"""Shared code of the types with items: parsing items, opening an element, bounded replies.

Invariants:
1. An item has at most `ITEM_BYTES_MAX` bytes.
2. A change returns at most `GIVEN_BYTES_MAX` bytes, since its reply is stored. A read returns at
   most `SHOWN_BYTES_MAX`.

Elsewhere: commands (`counters`, `lists`, `sets`, `queues`), the limit of the number of items
(`state`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from millstream.coordination.core.namespace.commands.command import Words
from millstream.coordination.core.namespace.paths import Path
from millstream.coordination.core.namespace.refused import Refused
from millstream.coordination.core.namespace.state.elements import Type
from millstream.coordination.core.namespace.state.family import Want
from millstream.coordination.core.namespace.state.state import Job
from millstream.vsr.core.values import bulk

__all__ = [
    "COUNT_MAX",
    "GIVEN_BYTES_MAX",
    "ITEM_BYTES_MAX",
    "SHOWN_BYTES_MAX",
    "bounded",
    "check_count",
    "opened",
    "taken_count",
    "taken_item",
    "taken_items",
]

ITEM_BYTES_MAX: Final = 1024 * 1024
"""Most bytes of one item of a list, set or queue."""
GIVEN_BYTES_MAX: Final = 4 * 1024 * 1024
"""Most bytes of items that one change returns."""
SHOWN_BYTES_MAX: Final = 64 * 1024 * 1024
"""Most bytes of items that one read returns."""
COUNT_MAX: Final = (1 << 63) - 1
"""Nobody asks for more items."""


def taken_item(words: Words) -> bytes:
    """Return the next word as an item; TOOBIG."""
    (item,) = _checked((words.take(),))
    return item


def taken_items(words: Words) -> tuple[bytes, ...]:
    """Return all words that are left, one at least, as items; TOOBIG."""
    return _checked((words.take(), *words.rest()))


def _checked(items: tuple[bytes, ...]) -> tuple[bytes, ...]:
    if max(map(len, items)) > ITEM_BYTES_MAX:
        raise Refused("TOOBIG", f"an item has {ITEM_BYTES_MAX} bytes at most")
    return items


def taken_count(words: Words, unless_said: int) -> int:
    """Return the last word there may be: how many are asked for."""
    count = words.number(1, COUNT_MAX) if len(words) else unless_said
    words.end()
    return count


def opened(job: Job, path: Path, kind: Type, want: Want) -> int:
    """Return the number of the element of this type that is there.

    Raises:
        Refused: ERROR_DOES_NOT_EXISTS, WRONGTYPE, or what keeps the asker from it.
    """
    number = job.state.elements.at(path)
    job.state.guard(job, number, want)
    found = job.state.elements.there(number).type
    if found is not kind:
        raise Refused("WRONGTYPE", f"it is a {found.name}, not a {kind.name}")
    return number


def check_count(job: Job, element: int, count: int) -> None:
    """Have room for so many items in an element.

    Raises:
        Refused: QUOTA.
    """
    most = job.state.items_max(element)
    if count > most:
        raise Refused("QUOTA", f"it has {most} items at most (LIMIT.ITEMS); remove some first")


def bounded(values: Iterable[bytes], bytes_max: int) -> list[bytes]:
    """Return values as they are shown.

    Raises:
        Refused: TOOBIG, if they have more bytes than that.
    """
    found, size = [], 0
    for value in values:
        size += len(value)
        if size > bytes_max:
            raise Refused("TOOBIG", f"that is more than {bytes_max} bytes; ask for fewer items")
        found.append(bulk(value))
    return found
