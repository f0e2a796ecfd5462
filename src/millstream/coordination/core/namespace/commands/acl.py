"""Commands on access lists: ACL GET, SET, WHOAMI, CHECK.

Invariants:
1. Only an owner or an administrator changes a list; with RECURSIVE, of every element below.
2. A refused command changes nothing.

Elsewhere: the meaning of a list, and where it is checked (`permissions`).

Source: V2R2, "ACL".
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from millstream.coordination.core.namespace.commands.command import (
    Call,
    Command,
    Words,
    sub_commands,
)
from millstream.coordination.core.namespace.paths import parse_path
from millstream.coordination.core.namespace.refused import Refused
from millstream.coordination.core.namespace.state.access_lists import (
    ENTRIES_MAX,
    NAME_BYTES_MAX,
    READ,
    WRITE,
    Acl,
    Grant,
    parse_grant,
    passes,
    shown,
)
from millstream.coordination.core.namespace.state.family import Want
from millstream.coordination.core.namespace.state.run import Asker
from millstream.coordination.core.namespace.state.state import Job
from millstream.vsr.core.values import OK, array, bulk, integer, mapping, truth

__all__ = ["ACL", "CHANGES_MAX"]

CHANGES_MAX: Final = 4 * ENTRIES_MAX
"""Entries that one command adds and removes."""

_MODE: Final = re.compile(rb"0?[0-7]{3}\Z")


class _Change(NamedTuple):
    """What ACL SET asks for; None stays as it is. With a grant is said whether it is a default."""

    owner: bytes | None = None
    group: bytes | None = None
    mode: int | None = None
    default_mode: int | None = None
    added: tuple[tuple[bool, Grant], ...] = ()
    removed: tuple[tuple[bool, Grant], ...] = ()
    is_recursive: bool = False


def _parse_change(words: Words) -> _Change:
    change = _Change()
    while len(words):
        change = _with(change, words, words.take().upper())
    if len(change.added) + len(change.removed) > CHANGES_MAX:
        raise words.wrong(f"at most {CHANGES_MAX} entries at once")
    if change == _Change(is_recursive=change.is_recursive):
        raise words.wrong()
    return change


def _with(change: _Change, words: Words, word: bytes) -> _Change:
    match word:
        case b"RECURSIVE":
            return change._replace(is_recursive=True)
        case b"OWNER":
            return change._replace(owner=_name(words))
        case b"GROUP":
            return change._replace(group=_name(words))
        case b"MODE":
            return change._replace(mode=_mode(words))
        case b"DEFAULT" if words.has(b"MODE"):
            return change._replace(default_mode=_mode(words))
        case b"ENTRY":
            return change._replace(added=(*change.added, _grant(words, with_bits=True)))
        case b"REMOVE":
            return change._replace(removed=(*change.removed, _grant(words, with_bits=False)))
    raise words.wrong()


def _name(words: Words) -> bytes:
    text = words.take()
    if not 0 < len(text) <= NAME_BYTES_MAX:
        raise words.wrong(f"a name has 1 to {NAME_BYTES_MAX} bytes")
    return text


def _mode(words: Words) -> int:
    text = words.take()
    if not _MODE.match(text):
        raise words.wrong("a mode is three octal digits")
    return int(text, 8)


def _grant(words: Words, *, with_bits: bool) -> tuple[bool, Grant]:
    found = parse_grant(words.take(), with_bits=with_bits)
    if found is None:
        raise words.wrong("an entry is [default:]user:name:rwx or [default:]group:name:rwx")
    return found


def _changed(acl: Acl, change: _Change) -> Acl:
    grants = {False: _by_name(acl.grants), True: _by_name(acl.defaults)}
    for is_default, grant in change.removed:
        grants[is_default].pop(grant[:2], None)
    for is_default, grant in change.added:
        grants[is_default][grant[:2]] = grant
    if max(map(len, grants.values())) > ENTRIES_MAX:
        raise Refused("QUOTA", f"a list has {ENTRIES_MAX} entries at most; put users in groups")
    for is_default, kept in grants.items():
        acl = acl.with_grants(is_default, kept.values())
    return acl._replace(
        owner=acl.owner if change.owner is None else change.owner,
        group=acl.group if change.group is None else change.group,
        mode=acl.mode if change.mode is None else change.mode,
        default_mode=acl.default_mode if change.default_mode is None else change.default_mode,
    )


def _by_name(grants: Iterable[Grant]) -> dict[tuple[bool, bytes], Grant]:
    return {grant[:2]: grant for grant in grants}


def _get(words: Words) -> Call:
    path = parse_path(words.take())
    is_stale = words.ends_with(b"STALEREAD")
    words.end()

    def execute(job: Job) -> bytes:
        number = job.state.elements.at(path)
        acl = job.state.permissions.of(number)
        if job.asker.principal != acl.owner:
            job.state.guard(job, number, Want.LOOK)
        return shown(acl)

    return Call(execute, (path,), is_change=False, is_stale=is_stale)


def _set(words: Words) -> Call:
    path = parse_path(words.take())
    change = _parse_change(words)

    def execute(job: Job) -> bytes:
        elements, permissions = job.state.elements, job.state.permissions
        top = elements.at(path)
        for number in elements.tree(top, job) if change.is_recursive else (top,):
            job.state.guard(job, number, Want.RULE)
            permissions.put(number, _changed(permissions.of(number), change))
            elements.touch(job, number)
            job.tell(b"attr", number)
        return OK

    return Call(execute, (path,))


def _whoami(words: Words) -> Call:
    words.end()

    def execute(job: Job) -> bytes:
        groups = array([bulk(group) for group in job.asker.groups])
        is_admin = passes(job.asker)
        return mapping(
            (
                (b"principal", bulk(job.asker.principal or b"anonymous")),
                (b"groups", groups),
                (b"admin", truth(is_admin)),
            )
        )

    return Call(execute, (), is_change=False)


def _check(words: Words) -> Call:
    path = parse_path(words.take())
    is_stale = words.ends_with(b"STALEREAD")
    wanted = {b"R": READ, b"W": WRITE}.get(words.take().upper())
    if wanted is None:
        raise words.wrong()
    principal = _name(words) if len(words) else None
    words.end()

    def execute(job: Job) -> bytes:
        number = job.state.elements.at(path)
        asker = job.asker
        if principal is not None and principal != asker.principal:
            job.state.guard(job, number, Want.RULE)
            asker = Asker(principal=principal)
        return integer(job.state.permissions.allow(asker, number, wanted))

    return Call(execute, (path,), is_change=False, is_stale=is_stale)


ACL: Final[tuple[str, Command]] = (
    "ACL GET|SET|WHOAMI|CHECK ...",
    sub_commands(
        {
            b"GET": ("ACL GET path [STALEREAD]", _get),
            b"SET": (
                "ACL SET path [OWNER user] [GROUP group] [MODE octal] [ENTRY user:name:rwx]... "
                "[REMOVE user:name]... [DEFAULT MODE octal] [RECURSIVE]",
                _set,
            ),
            b"WHOAMI": ("ACL WHOAMI", _whoami),
            b"CHECK": ("ACL CHECK path r|w [principal] [STALEREAD]", _check),
        }
    ),
)
"""How ACL is written, and how it is understood. Of whom CHECK is asked no groups are known."""
