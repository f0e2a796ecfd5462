"""Commands of queues: each item leaves once, by priority and then in the order of PUSH.

POP removes at once: an item whose reply is lost is lost. TAKE hides items from others until the
taker sends ACK. With NACK, or the end of the session, they return to the front of their priority.
So an item may be delivered twice, and `deliveries` counts this. The id of an item is the version
of its PUSH and a number among the items of that entry.

Invariants:
1. PURGE removes ready items. Taken items stay with their taker.
2. A command that does not change a queue does not give it a new version.
3. WAIT reserves nothing. As many waiting clients are notified, in order, as there are ready items.

Elsewhere: where items are (`queue_items`), waiting clients (`holders`).

Source: V2R2, "Queues".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from struct import Struct
from typing import Final

from millstream.coordination.core.namespace.commands.command import (
    Call,
    Command,
    Words,
    sub_commands,
)
from millstream.coordination.core.namespace.commands.items import (
    GIVEN_BYTES_MAX,
    SHOWN_BYTES_MAX,
    bounded,
    check_count,
    opened,
    taken_count,
    taken_items,
)
from millstream.coordination.core.namespace.paths import Path, parse_path
from millstream.coordination.core.namespace.refused import Refused
from millstream.coordination.core.namespace.state.elements import Type
from millstream.coordination.core.namespace.state.family import Want
from millstream.coordination.core.namespace.state.queue_items import (
    PRIORITY_MAX,
    TAKEN_MAX,
    Item,
    QueueItems,
)
from millstream.coordination.core.namespace.state.state import Job
from millstream.vsr.core.values import array, bulk, integer

__all__ = ["QUEUE", "fill_queue", "show_queue"]

_NAME: Final = Struct(">IIQI")
_ID: Final = re.compile(rb"(\d{1,20}):(\d{1,20}):(\d{1,20}):(\d{1,20})\Z")
_WIDTHS: Final = (32, 32, 64, 32)


# ---- CREATE, GET


def fill_queue(job: Job, element: int, _options: object, values: tuple[bytes, ...]) -> None:
    """Push the first items of a new queue."""
    if values:
        queue = job.state.queues.of(element)
        _put_in(job, element, queue, values, 0)
        job.state.elements.touch(job, element, queue.size)


def show_queue(job: Job, element: int) -> bytes:
    """Return the values that are ready, the next one first."""
    ready = job.state.queues.of(element).ready()
    return array(bounded((item.value for item in ready), SHOWN_BYTES_MAX))


# ---- changes


def _push(words: Words) -> Call:
    path, values = parse_path(words.take()), taken_items(words)
    priority = 0
    if len(values) > 2 and values[-2].upper() == b"PRIORITY":
        priority = Words(values[-1:], words.usage).number(-PRIORITY_MAX, PRIORITY_MAX)
        values = values[:-2]

    def execute(job: Job) -> bytes:
        element, queue = _opened(job, path)
        items = _put_in(job, element, queue, values, priority)
        _changed(job, element, queue)
        return array([bulk(item.id) for item in items])

    return Call(execute, (path,))


def _put_in(
    job: Job, element: int, queue: QueueItems, values: Sequence[bytes], priority: int
) -> list[Item]:
    check_count(job, element, queue.count + len(values))
    items = [
        Item(*job.version, number, priority, 0, value)
        for number, value in enumerate(values, job.counted)
    ]
    job.counted += len(items)
    queue.push(items)
    return items


def _pop(words: Words) -> Call:
    path, count = parse_path(words.take()), taken_count(words, 1)

    def execute(job: Job) -> bytes:
        element, queue = _opened(job, path)
        gone = queue.pop(count, GIVEN_BYTES_MAX)
        if gone:
            _changed(job, element, queue)
        return array([bulk(item.value) for item in gone])

    return Call(execute, (path,))


def _take(words: Words) -> Call:
    path, count = parse_path(words.take()), taken_count(words, 1)

    def execute(job: Job) -> bytes:
        element, queue = _opened(job, path)
        session = _session(job)
        has = job.state.queues.number_taken(session)
        if has >= TAKEN_MAX:
            raise Refused(
                "QUOTA", f"a session has {TAKEN_MAX} items at most; acknowledge some first"
            )
        taken = queue.take(session, min(count, TAKEN_MAX - has), GIVEN_BYTES_MAX)
        if taken:
            _changed(job, element, queue)
        return array([_shown(item) for item in taken])

    return Call(execute, (path,), needs_session=True)


def _shown(item: Item) -> bytes:
    return array((bulk(item.id), bulk(item.value), integer(item.deliveries)))


def _acknowledge(words: Words) -> Call:
    return _end_taking(words, QueueItems.acknowledge)


def _give_back(words: Words) -> Call:
    return _end_taking(words, QueueItems.give_back)


def _end_taking(words: Words, end: Callable[[QueueItems, int, Sequence[bytes]], int]) -> Call:
    path = parse_path(words.take())
    names = [_name_in(words, text) for text in (words.take(), *words.rest())]

    def execute(job: Job) -> bytes:
        element, queue = _opened(job, path)
        count = end(queue, _session(job), names)
        if count:
            _changed(job, element, queue)
        return integer(count)

    return Call(execute, (path,), needs_session=True)


def _name_in(words: Words, text: bytes) -> bytes:
    found = _ID.match(text)
    numbers = [int(digits) for digits in found.groups()] if found else []
    if not found or any(n >> width for n, width in zip(numbers, _WIDTHS, strict=True)):
        raise words.wrong("an id is epoch:view:lsn:number")
    return _NAME.pack(*numbers)


def _purge(words: Words) -> Call:
    path = parse_path(words.take())
    words.end()

    def execute(job: Job) -> bytes:
        element, queue = _opened(job, path)
        count = queue.purge()
        if count:
            _changed(job, element, queue)
        return integer(count)

    return Call(execute, (path,))


def _wait(words: Words) -> Call:
    path = parse_path(words.take())
    words.end()

    def execute(job: Job) -> bytes:
        element, _ = _opened(job, path)
        _session(job)
        return job.state.queues.wait(job, element)

    return Call(execute, (path,), needs_session=True)


def _opened(job: Job, path: Path) -> tuple[int, QueueItems]:
    element = opened(job, path, Type.QUEUE, Want.WRITE)
    return element, job.state.queues.of(element)


def _session(job: Job) -> int:
    if not job.asker.session:
        raise Refused("ERR", "taken items belong to a session: open one")
    return job.asker.session


def _changed(job: Job, element: int, queue: QueueItems) -> None:
    job.state.elements.touch(job, element, queue.size)
    job.tell(b"queue", element)


# ---- reads


def _peek(words: Words) -> Call:
    path = parse_path(words.take())
    is_stale = words.ends_with(b"STALEREAD")
    count = taken_count(words, 1)

    def execute(job: Job) -> bytes:
        queue = job.state.queues.of(opened(job, path, Type.QUEUE, Want.READ))
        values = (item.value for item in islice(queue.ready(), count))
        return array(bounded(values, SHOWN_BYTES_MAX))

    return Call(execute, (path,), is_change=False, is_stale=is_stale)


def _length(words: Words) -> Call:
    path = parse_path(words.take())
    is_stale = words.has(b"STALEREAD")
    words.end()

    def execute(job: Job) -> bytes:
        now = job.state.queues.of(opened(job, path, Type.QUEUE, Want.READ)).now
        return array((integer(now.ready), integer(now.taken)))

    return Call(execute, (path,), is_change=False, is_stale=is_stale)


_COMMANDS: Final[Mapping[bytes, tuple[str, Command]]] = {
    b"PUSH": ("QUEUE PUSH path value [value ...] [PRIORITY number]", _push),
    b"POP": ("QUEUE POP path [count]", _pop),
    b"TAKE": ("QUEUE TAKE path [count]", _take),
    b"ACK": ("QUEUE ACK path id [id ...]", _acknowledge),
    b"NACK": ("QUEUE NACK path id [id ...]", _give_back),
    b"PURGE": ("QUEUE PURGE path", _purge),
    b"WAIT": ("QUEUE WAIT path", _wait),
    b"PEEK": ("QUEUE PEEK path [count] [STALEREAD]", _peek),
    b"LEN": ("QUEUE LEN path [STALEREAD]", _length),
}
QUEUE: Final = ("QUEUE PUSH|POP|TAKE|ACK|NACK|PURGE|PEEK|LEN|WAIT ...", sub_commands(_COMMANDS))
"""How the command is written, and how it is understood."""
