"""Commands of counters.

Invariants:
1. A client whose change is stopped at an end of the range gets the value and NOWRAP.
2. INC, DEC and RESET give a counter a new version even if its value does not change.

Elsewhere: values (`counter_values`), repeated requests that count once (`client_table`).

Source: V2R2, "COUNTER".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from millstream.coordination.core.namespace.commands.command import (
    Call,
    Command,
    Words,
    sub_commands,
)
from millstream.coordination.core.namespace.commands.items import opened
from millstream.coordination.core.namespace.paths import parse_path
from millstream.coordination.core.namespace.state.counter_values import (
    BITS,
    BITS_MAX,
    BITS_MIN,
    Counter,
)
from millstream.coordination.core.namespace.state.elements import Type
from millstream.coordination.core.namespace.state.family import Want
from millstream.coordination.core.namespace.state.state import Job
from millstream.vsr.core.values import array, integer, status

__all__ = [
    "COUNTER",
    "fill_counter",
    "show_counter",
    "taken_options",
]

COUNT_MAX: Final = 2**BITS_MAX - 1
"""Largest step of a counter."""
_DIGITS_MAX: Final = len(str(COUNT_MAX))
_NOWRAP: Final = status(b"NOWRAP")


# ---- CREATE, GET


def taken_options(words: Words) -> Counter:
    """Return a new counter, with the options that come next."""
    bits, seen = BITS, set()
    while (option := words.peek()) in (b"UNSIGNED", b"BIT", b"WRAP"):
        words.take()
        if option in seen:
            raise words.wrong("an option is said once")
        seen.add(option)
        bits = words.number(BITS_MIN, BITS_MAX) if option == b"BIT" else bits
    if bits % 8:
        raise words.wrong(f"BIT is {BITS_MIN} to {BITS_MAX}, by eights")
    return Counter(bits, b"UNSIGNED" in seen, b"WRAP" in seen)


def fill_counter(job: Job, element: int, options: object, _values: tuple[bytes, ...]) -> None:
    """Make a new element the counter that `taken_options` returned."""
    assert isinstance(options, Counter)
    job.state.counters.put(job, element, options)


def show_counter(job: Job, element: int) -> bytes:
    """Return its value."""
    return integer(job.state.counters.of(element).value)


# ---- COUNTER


def _increment(words: Words) -> Call:
    return _step(words, 1)


def _decrement(words: Words) -> Call:
    return _step(words, -1)


def _step(words: Words, sign: int) -> Call:
    count = 1 if words.peek().startswith(b"/") else _taken_count(words)
    path = parse_path(words.take())
    is_wrapping = words.has(b"WRAP")
    words.end()

    def execute(job: Job) -> bytes:
        element = opened(job, path, Type.COUNTER, Want.WRITE)
        counter = job.state.counters.of(element)
        moved = counter.moved(sign * count, is_wrapping=is_wrapping)
        _put(job, element, moved)
        is_round = is_wrapping or counter.is_wrapping
        is_stopped = not is_round and moved.value != counter.value + sign * count
        value = integer(moved.value)
        return array((value, _NOWRAP)) if is_stopped else value

    return Call(execute, (path,))


def _taken_count(words: Words) -> int:
    text = words.take()
    if not text.isdigit() or len(text) > _DIGITS_MAX or int(text) > COUNT_MAX:
        raise words.wrong(f"a count is 0 to 2^{BITS_MAX} - 1")
    return int(text)


def _reset(words: Words) -> Call:
    path = parse_path(words.take())
    words.end()

    def execute(job: Job) -> bytes:
        element = opened(job, path, Type.COUNTER, Want.WRITE)
        _put(job, element, job.state.counters.of(element)._replace(value=0))
        return integer(0)

    return Call(execute, (path,))


def _put(job: Job, element: int, counter: Counter) -> None:
    job.state.counters.put(job, element, counter)
    job.tell(b"counter", element, b"%d" % counter.value)


def _get(words: Words) -> Call:
    path = parse_path(words.take())
    is_stale = words.has(b"STALEREAD")
    words.end()

    def execute(job: Job) -> bytes:
        return show_counter(job, opened(job, path, Type.COUNTER, Want.READ))

    return Call(execute, (path,), is_change=False, is_stale=is_stale)


_COMMANDS: Final[Mapping[bytes, tuple[str, Command]]] = {
    b"INC": ("COUNTER INC [count] path [WRAP]", _increment),
    b"DEC": ("COUNTER DEC [count] path [WRAP]", _decrement),
    b"RESET": ("COUNTER RESET path", _reset),
    b"GET": ("COUNTER GET path [STALEREAD]", _get),
}
COUNTER: Final = ("COUNTER INC|DEC|RESET|GET ...", sub_commands(_COMMANDS))
"""How the command is written, and how it is understood."""
