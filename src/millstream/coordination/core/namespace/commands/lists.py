"""Commands of lists: values at indexes from 0 on, or from the end at -1, -2, and so on.

Ranges include both ends. Prepended values are placed before the others, in the given order. An
inserted value gets the given index; with a negative index it is placed before the item there.

Invariants:
1. The cost of a change depends on the items near it, not on the length of the list. Only REMVAL
   and FIND examine all items.
2. An index outside the list is refused by commands that write, and is an empty result otherwise.
3. A command that does not change a list does not give it a new version.

Elsewhere: where items are (`list_items`).

Source: V2R2, "Lists".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from millstream.coordination.core.namespace.commands.command import (
    Call,
    Command,
    Words,
    sub_commands,
)
from millstream.coordination.core.namespace.commands.items import (
    COUNT_MAX,
    GIVEN_BYTES_MAX,
    SHOWN_BYTES_MAX,
    bounded,
    check_count,
    opened,
    taken_count,
    taken_item,
    taken_items,
)
from millstream.coordination.core.namespace.paths import Path, parse_path
from millstream.coordination.core.namespace.refused import Refused
from millstream.coordination.core.namespace.state.elements import Type
from millstream.coordination.core.namespace.state.family import Want
from millstream.coordination.core.namespace.state.list_items import ListItems
from millstream.coordination.core.namespace.state.state import Job
from millstream.vsr.core.values import NULL, OK, array, bulk, integer

__all__ = ["LIST", "fill_list", "show_list"]

_INDEX_MAX: Final = (1 << 63) - 1


# ---- CREATE, GET


def fill_list(job: Job, element: int, _options: object, values: tuple[bytes, ...]) -> None:
    """Put the first items into a new list."""
    if values:
        items = job.state.lists.of(element)
        check_count(job, element, len(values))
        items.splice(0, 0, values)
        job.state.elements.touch(job, element, items.size)


def show_list(job: Job, element: int) -> bytes:
    """Return all items."""
    items = job.state.lists.of(element)
    return array(bounded(items.items(0, items.count), SHOWN_BYTES_MAX))


# ---- changes


def _append(words: Words) -> Call:
    path, values = parse_path(words.take()), taken_items(words)

    def execute(job: Job) -> bytes:
        element, items = _opened(job, path)
        return _put_in(job, element, items, items.count, values)

    return Call(execute, (path,))


def _prepend(words: Words) -> Call:
    path, values = parse_path(words.take()), taken_items(words)

    def execute(job: Job) -> bytes:
        element, items = _opened(job, path)
        return _put_in(job, element, items, 0, values)

    return Call(execute, (path,))


def _insert(words: Words) -> Call:
    path, index = parse_path(words.take()), _taken_index(words)
    value = taken_item(words)
    words.end()

    def execute(job: Job) -> bytes:
        element, items = _opened(job, path)
        at = _from_front(index, items.count)
        if not 0 <= at <= items.count:
            raise _no_place(index, items.count)
        return _put_in(job, element, items, at, (value,))

    return Call(execute, (path,))


def _put_in(job: Job, element: int, items: ListItems, at: int, values: Sequence[bytes]) -> bytes:
    check_count(job, element, items.count + len(values))
    items.splice(at, at, values)
    _changed(job, element, items)
    return integer(items.count)


def _set(words: Words) -> Call:
    path, index = parse_path(words.take()), _taken_index(words)
    value = taken_item(words)
    words.end()

    def execute(job: Job) -> bytes:
        element, items = _opened(job, path)
        at = _from_front(index, items.count)
        if not 0 <= at < items.count:
            raise _no_place(index, items.count)
        items.splice(at, at + 1, (value,))
        _changed(job, element, items)
        return OK

    return Call(execute, (path,))


def _remove(words: Words) -> Call:
    path, index = parse_path(words.take()), _taken_index(words)
    count = taken_count(words, 1)

    def execute(job: Job) -> bytes:
        element, items = _opened(job, path)
        begin = _from_front(index, items.count)
        end = min(begin + count, items.count)
        if not 0 <= begin < end:
            return array(())
        gone = bounded(items.items(begin, end), GIVEN_BYTES_MAX)
        items.splice(begin, end, ())
        _changed(job, element, items)
        return array(gone)

    return Call(execute, (path,))


def _remove_value(words: Words) -> Call:
    path, value = parse_path(words.take()), words.take()
    count = taken_count(words, COUNT_MAX)

    def execute(job: Job) -> bytes:
        element, items = _opened(job, path)
        before = items.count
        for begin, end, kept in reversed(_chunks_without(items, value, count)):
            items.splice(begin, end, kept)  # from behind: what is ahead keeps its index
        if items.count != before:
            _changed(job, element, items)
        return integer(before - items.count)

    return Call(execute, (path,))


def _chunks_without(
    items: ListItems, value: bytes, most: int
) -> list[tuple[int, int, list[bytes]]]:
    """Return the chunks that have a value, as ends and what stays if it goes so often at most."""
    changes = []
    for begin, chunk in items.chunks():
        found = min(chunk.count(value), most)
        if found:
            changes.append((begin, begin + len(chunk), _without(chunk, value, found)))
            most -= found
        if not most:
            break
    return changes


def _without(items: Sequence[bytes], value: bytes, count: int) -> list[bytes]:
    kept = []
    for item in items:
        if count and item == value:
            count -= 1
        else:
            kept.append(item)
    return kept


def _trim(words: Words) -> Call:
    path, first, last = parse_path(words.take()), _taken_index(words), _taken_index(words)
    words.end()

    def execute(job: Job) -> bytes:
        element, items = _opened(job, path)
        begin, end = _ends(first, last, items.count)
        if end - begin < items.count:
            items.splice(end, items.count, ())
            items.splice(0, begin, ())
            _changed(job, element, items)
        return integer(items.count)

    return Call(execute, (path,))


def _opened(job: Job, path: Path) -> tuple[int, ListItems]:
    element = opened(job, path, Type.LIST, Want.WRITE)
    return element, job.state.lists.of(element)


def _changed(job: Job, element: int, items: ListItems) -> None:
    job.state.elements.touch(job, element, items.size)
    job.tell(b"list", element)


# ---- reads


def _index(words: Words) -> Call:
    path, index = parse_path(words.take()), _taken_index(words)

    def read(items: ListItems) -> bytes:
        at = _from_front(index, items.count)
        return bulk(*items.items(at, at + 1)) if 0 <= at < items.count else NULL

    return _read(words, path, read)


def _range(words: Words) -> Call:
    path, first, last = parse_path(words.take()), _taken_index(words), _taken_index(words)

    def read(items: ListItems) -> bytes:
        return array(bounded(items.items(*_ends(first, last, items.count)), SHOWN_BYTES_MAX))

    return _read(words, path, read)


def _length(words: Words) -> Call:
    return _read(words, parse_path(words.take()), lambda items: integer(items.count))


def _find(words: Words) -> Call:
    path, value = parse_path(words.take()), words.take()

    def read(items: ListItems) -> bytes:
        for begin, chunk in items.chunks():
            if value in chunk:
                return integer(begin + chunk.index(value))
        return NULL

    return _read(words, path, read)


def _read(words: Words, path: Path, read: Callable[[ListItems], bytes]) -> Call:
    is_stale = words.has(b"STALEREAD")
    words.end()

    def execute(job: Job) -> bytes:
        return read(job.state.lists.of(opened(job, path, Type.LIST, Want.READ)))

    return Call(execute, (path,), is_change=False, is_stale=is_stale)


# ---- indexes


def _taken_index(words: Words) -> int:
    return words.number(-_INDEX_MAX, _INDEX_MAX)


def _from_front(index: int, count: int) -> int:
    return index + count if index < 0 else index


def _ends(first: int, last: int, count: int) -> tuple[int, int]:
    """Return a range from its first index up to, not including, its last, within the list."""
    begin = min(max(_from_front(first, count), 0), count)
    return begin, max(begin, min(_from_front(last, count) + 1, count))


def _no_place(index: int, count: int) -> Refused:
    return Refused("BADARG", f"the list has {count} items, and no index {index}")


_COMMANDS: Final[Mapping[bytes, tuple[str, Command]]] = {
    b"APPEND": ("LIST APPEND path value [value ...]", _append),
    b"PREPEND": ("LIST PREPEND path value [value ...]", _prepend),
    b"INSERT": ("LIST INSERT path index value", _insert),
    b"SET": ("LIST SET path index value", _set),
    b"REMOVE": ("LIST REMOVE path index [count]", _remove),
    b"REMVAL": ("LIST REMVAL path value [count]", _remove_value),
    b"TRIM": ("LIST TRIM path first last", _trim),
    b"INDEX": ("LIST INDEX path index [STALEREAD]", _index),
    b"RANGE": ("LIST RANGE path first last [STALEREAD]", _range),
    b"LEN": ("LIST LEN path [STALEREAD]", _length),
    b"FIND": ("LIST FIND path value [STALEREAD]", _find),
}
LIST: Final = (
    "LIST APPEND|PREPEND|INSERT|SET|REMOVE|REMVAL|TRIM|INDEX|RANGE|LEN|FIND path ...",
    sub_commands(_COMMANDS),
)
"""How the command is written, and how it is understood."""
