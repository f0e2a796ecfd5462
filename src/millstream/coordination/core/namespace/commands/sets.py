"""Commands of sets. Members are unique; where an order is visible it is that of their bytes.

Invariants:
1. The work of a command is bounded: by its words, by a page, or by `LOOKED_AT_MAX` members.
2. A command that does not change a set does not give it a new version.

Elsewhere: where members are (`set_members`).

Source: V2R2, "Sets".
"""

from __future__ import annotations

from base64 import b64decode, urlsafe_b64encode
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
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
    taken_items,
)
from millstream.coordination.core.namespace.paths import Path, parse_path
from millstream.coordination.core.namespace.refused import Refused
from millstream.coordination.core.namespace.state.elements import Type
from millstream.coordination.core.namespace.state.family import Want
from millstream.coordination.core.namespace.state.set_members import Sets
from millstream.coordination.core.namespace.state.state import Job
from millstream.vsr.core.values import NULL, array, bulk, integer, members

__all__ = ["LOOKED_AT_MAX", "PAGE", "PAGE_MAX", "SET", "fill_set", "show_set"]

PAGE: Final = 1000
"""Members on a page, if a client does not say."""
PAGE_MAX: Final = 10_000
LOOKED_AT_MAX: Final = 250_000
"""Members, all sets together, that UNION, INTER and DIFF of one entry, or read, may be about."""


# ---- CREATE, GET


def fill_set(job: Job, element: int, _options: object, values: tuple[bytes, ...]) -> None:
    """Put the first members into a new set."""
    _put_in(job, element, values)


def show_set(job: Job, element: int) -> bytes:
    """Return all members."""
    return members(bounded(job.state.sets.members(element), SHOWN_BYTES_MAX))


# ---- changes


def _add(words: Words) -> Call:
    return _change(words, _put_in)


def _put_in(job: Job, element: int, members: Sequence[bytes]) -> int:
    sets = job.state.sets
    new = sets.new(element, members)
    check_count(job, element, sets.size(element).members + len(new))
    return sets.add(job, element, new)


def _remove(words: Words) -> Call:
    return _change(words, _take_out)


def _take_out(job: Job, element: int, unwanted: Sequence[bytes]) -> int:
    return job.state.sets.remove(job, element, unwanted)


def _change(words: Words, change: Callable[[Job, int, Sequence[bytes]], int]) -> Call:
    path, named = parse_path(words.take()), taken_items(words)

    def execute(job: Job) -> bytes:
        element = opened(job, path, Type.SET, Want.WRITE)
        count = change(job, element, named)
        if count:
            job.tell(b"set", element)
        return integer(count)

    return Call(execute, (path,))


def _pop(words: Words) -> Call:
    path = parse_path(words.take())
    words.end()

    def execute(job: Job) -> bytes:
        element = opened(job, path, Type.SET, Want.WRITE)
        smallest = next(job.state.sets.members(element), None)
        if smallest is None:
            return NULL
        job.state.sets.remove(job, element, (smallest,))
        job.tell(b"set", element)
        return bulk(smallest)

    return Call(execute, (path,))


# ---- reads


def _has(words: Words) -> Call:
    path, member = parse_path(words.take()), words.take()
    return _read(words, path, lambda sets, element: integer(sets.has(element, member)))


def _length(words: Words) -> Call:
    path = parse_path(words.take())
    return _read(words, path, lambda sets, element: integer(sets.size(element).members))


def _members(words: Words) -> Call:
    path = parse_path(words.take())
    after, count = None, PAGE
    while len(words) > 1:
        if words.has(b"TOKEN"):
            after = _member_in(words.take())
        elif words.has(b"COUNT"):
            count = words.number(1, PAGE_MAX)
        else:
            raise words.wrong()
    return _read(words, path, lambda sets, element: _page(sets, element, after, count))


def _page(sets: Sets, element: int, after: bytes | None, count: int) -> bytes:
    following, size, page = sets.members(element, after), 0, []
    for member in islice(following, count):
        page.append(member)
        size += len(member)
        if size >= GIVEN_BYTES_MAX:
            break
    is_last = next(following, None) is None
    token = NULL if is_last else bulk(urlsafe_b64encode(page[-1]))
    return array((token, array([bulk(member) for member in page])))


def _member_in(token: bytes) -> bytes:
    try:
        return b64decode(token, b"-_", validate=True)
    except ValueError:
        raise Refused("BADTOKEN", "this is not a cursor of SET MEMBERS") from None


def _read(words: Words, path: Path, read: Callable[[Sets, int], bytes]) -> Call:
    is_stale = words.has(b"STALEREAD")
    words.end()

    def execute(job: Job) -> bytes:
        return read(job.state.sets, opened(job, path, Type.SET, Want.READ))

    return Call(execute, (path,), is_change=False, is_stale=is_stale)


def _union(words: Words) -> Call:
    return _combine(words, set[bytes].union)


def _intersection(words: Words) -> Call:
    return _combine(words, set[bytes].intersection)


def _difference(words: Words) -> Call:
    return _combine(words, set[bytes].difference)


def _combine(words: Words, combine: Callable[..., set[bytes]]) -> Call:
    is_stale = words.ends_with(b"STALEREAD")
    paths = tuple(map(parse_path, (words.take(), *words.rest())))

    def execute(job: Job) -> bytes:
        sets = job.state.sets
        elements = [opened(job, path, Type.SET, Want.READ) for path in paths]
        job.looked_at += sum(sets.size(element).members for element in elements)
        if job.looked_at > LOOKED_AT_MAX:
            raise Refused("TOOBIG", f"these sets have more than {LOOKED_AT_MAX} members in all")
        found = combine(*(set(sets.members(element)) for element in elements))
        return members(bounded(sorted(found), SHOWN_BYTES_MAX))

    return Call(execute, paths, is_change=False, is_stale=is_stale)


_COMMANDS: Final[Mapping[bytes, tuple[str, Command]]] = {
    b"ADD": ("SET ADD path member [member ...]", _add),
    b"REM": ("SET REM path member [member ...]", _remove),
    b"POP": ("SET POP path", _pop),
    b"HAS": ("SET HAS path member [STALEREAD]", _has),
    b"LEN": ("SET LEN path [STALEREAD]", _length),
    b"MEMBERS": ("SET MEMBERS path [TOKEN token] [COUNT number] [STALEREAD]", _members),
    b"UNION": ("SET UNION path [path ...] [STALEREAD]", _union),
    b"INTER": ("SET INTER path [path ...] [STALEREAD]", _intersection),
    b"DIFF": ("SET DIFF path [path ...] [STALEREAD]", _difference),
}
SET: Final = ("SET ADD|REM|POP|HAS|LEN|MEMBERS|UNION|INTER|DIFF ...", sub_commands(_COMMANDS))
"""How the command is written, and how it is understood."""
