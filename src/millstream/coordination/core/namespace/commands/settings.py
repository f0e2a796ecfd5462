"""Commands on configuration: CONFIG GET, SET, UNSET.

Invariants:
1. A key of another scope and an invalid value are refused before they are logged. A value that
   contradicts other settings is refused when it is executed.

Elsewhere: the keys (`keys`), the value in force (`configuration`).

Source: V2R2, "Nomenclature" on configuration, "Sessions and Heartbeating" for an example.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from millstream.coordination.core.namespace.commands.command import (
    Call,
    Command,
    Words,
    sub_commands,
)
from millstream.coordination.core.namespace.paths import Path, parse_path
from millstream.coordination.core.namespace.refused import Refused
from millstream.coordination.core.namespace.state.configuration import (
    GLOBAL,
    GROUP,
    Setting,
    may_be_set,
)
from millstream.coordination.core.namespace.state.family import Want
from millstream.coordination.core.namespace.state.keys import (
    BEATS_MIN,
    FIXED,
    KEYS,
    VALUE_BYTES_MAX,
    Key,
    Owner,
    number_of,
)
from millstream.coordination.core.namespace.state.state import Job
from millstream.vsr.core.values import OK, array, bulk, mapping

__all__ = ["CONFIG", "PATTERN_BYTES_MAX"]

PATTERN_BYTES_MAX: Final = 64
"""Most bytes of a pattern of keys. No key is longer."""
_SETS: Final = {
    b"GROUP": (GROUP, (Owner.GROUP, Owner.NAMESPACE, Owner.ELEMENT)),
    b"GLOBAL": (GLOBAL, (Owner.GLOBAL,)),
}
_WHY_FIXED: Final = "ADMIN GROUP CREATE chooses the journal"
_BEATING: Final = (b"GROUP.HEARTBEAT", b"GROUP.VIEW.TIMEOUT")
_OF_ELEMENTS: Final = (Owner.NAMESPACE, Owner.ELEMENT)


class _Place(NamedTuple):
    """The scope of a setting: a path, or a name that stands for a set of paths."""

    path: Path
    where: int
    owners: tuple[Owner, ...]

    @property
    def paths(self) -> tuple[Path, ...]:
        return (self.path,) if self.path else ()

    def find(self, job: Job, want: Want) -> int:
        """Return the number that it is kept under; sets are for administrators."""
        if not self.path:
            job.state.permissions.check_admin(job, b"CONFIG")
            return self.where
        number = job.state.elements.at(self.path)
        job.state.guard(job, number, want)
        return number


def _place(words: Words) -> _Place:
    if words.peek() in _SETS:
        return _Place((), *_SETS[words.take().upper()])
    if words.peek() == b"NODE":
        raise words.wrong("a node takes its keys from its file, when it starts")
    return _Place(parse_path(words.take()), GROUP, _OF_ELEMENTS)


def _key(words: Words, place: _Place) -> Key:
    name = words.take()
    key = KEYS.get(name.upper())
    if key is None:
        raise words.wrong(f"there is no key {name[:PATTERN_BYTES_MAX].decode('ascii', 'replace')}")
    where = place.where if not place.path else 1
    if not may_be_set(key, where, is_root=len(place.path) == 1):
        raise words.wrong(f"{key.name.decode()} is set by: {key.owner.value}")
    return key


def _get(words: Words) -> Call:
    is_stale = words.ends_with(b"STALEREAD")
    with_source = words.ends_with(b"SOURCE")
    place = _place(words)
    pattern = words.take()
    words.end()
    if len(pattern) > PATTERN_BYTES_MAX:
        raise words.wrong(f"keys have at most {PATTERN_BYTES_MAX} bytes")
    key = KEYS.get(pattern.upper())
    if with_source and (key is None or key.owner not in place.owners):
        raise words.wrong("SOURCE is of one key")

    def execute(job: Job) -> bytes:
        number = place.find(job, Want.LOOK)
        settings = job.state.settings
        if with_source and key is not None:
            found = settings.find(number, key)
            return array((bulk(found.value), bulk(_source(job, found))))
        fitting = settings.matching(number, pattern, place.owners)
        return mapping([(found.key.name, bulk(found.value)) for found in fitting])

    return Call(execute, place.paths, is_change=False, is_stale=is_stale)


def _source(job: Job, found: Setting) -> bytes:
    if found.where is None:
        return b"DEFAULT"
    names = {GROUP: b"GROUP", GLOBAL: b"GLOBAL"}
    return names.get(found.where) or job.state.elements.path(found.where)


def _set(words: Words) -> Call:
    place = _place(words)
    key = _key(words, place)
    if key.name in FIXED:
        raise words.wrong(f"{key.name.decode()} cannot be set: {_WHY_FIXED}")
    written = [words.take()]
    if len(words):
        written.append(words.take())
    words.end()
    text = b" ".join(written)
    value = key.read(text) if len(text) <= VALUE_BYTES_MAX else None
    if value is None:
        raise words.wrong(f"{key.name.decode()} is {key.range}")
    return _change(place, lambda job, number: _put(job, number, key, value))


def _put(job: Job, number: int, key: Key, value: bytes) -> None:
    job.state.settings.put(number, key, value)
    _check_times(job, key)
    if key.name == b"SUBS.MIN.HISTORY" and value == b"0":
        job.state.marks.end_of(number)


def _unset(words: Words) -> Call:
    place = _place(words)
    key = _key(words, place)
    words.end()

    def remove(job: Job, number: int) -> None:
        job.state.settings.remove(number, key)
        _check_times(job, key)

    return _change(place, remove)


def _check_times(job: Job, key: Key) -> None:
    """Refuse a silence that is over before a few heart-beats were lost.

    Raises:
        Refused: BADCONFIG.
    """
    if key.name not in _BEATING:
        return
    beat_ms, silence_ms = (
        number_of(job.state.settings.find(GROUP, KEYS[name]).value.partition(b"-")[0])
        for name in _BEATING
    )
    if silence_ms < BEATS_MIN * beat_ms:
        raise Refused(
            "BADCONFIG",
            f"GROUP.VIEW.TIMEOUT would be {silence_ms} ms, and has to be {BEATS_MIN} times "
            f"GROUP.HEARTBEAT, {beat_ms} ms, at least: set the other one first",
        )


def _change(place: _Place, change: Callable[[Job, int], None]) -> Call:
    def execute(job: Job) -> bytes:
        number = place.find(job, Want.RULE)
        change(job, number)
        if place.path:
            job.state.elements.touch(job, number)
            job.tell(b"attr", number)
        return OK

    return Call(execute, place.paths)


_WHERE: Final = "path|GROUP|GLOBAL"
CONFIG: Final[tuple[str, Command]] = (
    "CONFIG GET|SET|UNSET path|GROUP|GLOBAL key ...",
    sub_commands(
        {
            b"GET": (f"CONFIG GET {_WHERE} key|pattern [SOURCE] [STALEREAD]", _get),
            b"SET": (f"CONFIG SET {_WHERE} key value [unit]", _set),
            b"UNSET": (f"CONFIG UNSET {_WHERE} key", _unset),
        }
    ),
)
"""How CONFIG is written, and how it is understood."""
