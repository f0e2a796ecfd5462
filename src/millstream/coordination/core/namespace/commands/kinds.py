"""The types of elements: how one is created, and what GET shows of it.

Invariants:
1. There is one kind for each type that CREATE knows.

Elsewhere: the commands of a type (its module), those for all types (`tree`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from millstream.coordination.core.namespace.commands.command import Words
from millstream.coordination.core.namespace.commands.counters import (
    fill_counter,
    show_counter,
    taken_options,
)
from millstream.coordination.core.namespace.commands.lists import fill_list, show_list
from millstream.coordination.core.namespace.commands.queues import fill_queue, show_queue
from millstream.coordination.core.namespace.commands.sets import fill_set, show_set
from millstream.coordination.core.namespace.state.elements import Type
from millstream.coordination.core.namespace.state.state import Job
from millstream.vsr.core.values import bulk

__all__ = ["DATA_BYTES_MAX", "KINDS", "VALUES_MAX", "Kind", "checked_data"]

DATA_BYTES_MAX: Final = 1024 * 1024
"""Most bytes of the data of a binary element, or of one item of another element."""


VALUES_MAX: Final = 1024
"""Initial ones of an element: a request has no more words."""


def _counted_later(_values: tuple[bytes, ...]) -> int:
    return 0


class Kind(NamedTuple):
    """A type.

    `options`: takes the words of CREATE that only this type has, as far as they are such; what it
    returns is given to `fill`, which makes the new element of those and of the initial values.
    `show`: the element in its natural form.
    """

    type: Type
    options: Callable[[Words], object]
    fill: Callable[[Job, int, object, tuple[bytes, ...]], None]
    show: Callable[[Job, int], bytes]
    values_max: int
    """How many initial values there may be."""
    size: Callable[[tuple[bytes, ...]], int] = _counted_later
    """The bytes of the new element that `fill` does not count."""


def checked_data(words: Words, data: bytes) -> bytes:
    """Return what an element may hold.

    Raises:
        Refused: TOOBIG.
    """
    if len(data) > DATA_BYTES_MAX:
        refused = words.wrong(f"at most {DATA_BYTES_MAX} bytes")
        refused.code = "TOOBIG"
        raise refused
    return data


def _no_options(_words: Words) -> object:
    return None


def _fill_binary(job: Job, number: int, _options: object, values: tuple[bytes, ...]) -> None:
    if values and values[0]:
        job.state.data.fill(number, values[0])


def _binary_size(values: tuple[bytes, ...]) -> int:
    return len(values[0]) if values else 0


def _show_binary(job: Job, number: int) -> bytes:
    return bulk(job.state.data.of(number))


KINDS: Final[Mapping[bytes, Kind]] = {
    b"BINARY": Kind(Type.BINARY, _no_options, _fill_binary, _show_binary, 1, _binary_size),
    b"LIST": Kind(Type.LIST, _no_options, fill_list, show_list, VALUES_MAX),
    b"SET": Kind(Type.SET, _no_options, fill_set, show_set, VALUES_MAX),
    b"QUEUE": Kind(Type.QUEUE, _no_options, fill_queue, show_queue, VALUES_MAX),
    b"COUNTER": Kind(Type.COUNTER, taken_options, fill_counter, show_counter, 0),
}
"""The kinds, by the word that CREATE takes."""
