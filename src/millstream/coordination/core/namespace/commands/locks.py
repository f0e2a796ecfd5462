"""LOCK [READ|WRITE] [GROUP] path ... [TOKEN] [NOWAIT], LOCK RELEASE, CANCEL, INFO; ELECT.

The leader is the holder of the WRITE lock of an element. ELECT CAMPAIGN is LOCK WRITE ... TOKEN,
and may set the data of the element once the lock is granted. ELECT RESIGN is LOCK RELEASE.

Invariants:
1. A session gets a lock at once if no other session holds or waits for a conflicting one, or if
   its own locks already allow as much.
2. A session gets a group of locks all together or not at all. While it waits it holds none of
   them.
3. A session that upgrades its READ lock to WRITE comes before others.
4. A session that would wait for itself, through other sessions, gets DEADLOCK instead.

Elsewhere: conflicts, offers, and what a lock prevents (`holders`).

Source: V2R2, "LOCK".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from millstream.coordination.core.namespace.commands.command import (
    Call,
    Command,
    Words,
    sub_commands,
)
from millstream.coordination.core.namespace.paths import Path, joined, parse_path
from millstream.coordination.core.namespace.refused import Refused
from millstream.coordination.core.namespace.state.claims import LOCKS, Mode, Phase
from millstream.coordination.core.namespace.state.elements import Type
from millstream.coordination.core.namespace.state.family import Want
from millstream.coordination.core.namespace.state.holders import granted
from millstream.coordination.core.namespace.state.state import Job
from millstream.vsr.core.values import NULL, OK, array, bulk

__all__ = ["ELECTED_BYTES_MAX", "LOCK_COMMANDS", "PATHS_MAX", "need_session"]

PATHS_MAX: Final = 128
"""Elements of one LOCK GROUP, or one RELEASE or CANCEL."""
ELECTED_BYTES_MAX: Final = 4096
"""Most bytes of the data that a candidate gives for its element; stored while it waits."""


class LockRequest(NamedTuple):
    """A lock that is asked for."""

    paths: tuple[Path, ...]
    mode: Mode
    token: bool = False
    may_wait: bool = True
    data: bytes | None = None


def need_session(job: Job) -> None:
    """Raise Refused if the request has no session."""
    if not job.asker.session:
        raise Refused("ERR", "this needs a session; SESSION OPEN begins one")


def paths_in(words: Words) -> tuple[Path, ...]:
    """Take all words that are paths, each path once.

    Raises:
        Refused: BADARG, if there is none or are too many; BADPATH.
    """
    found: dict[Path, None] = {}
    while words.peek().startswith(b"/"):
        found[parse_path(words.take())] = None
    if not 0 < len(found) <= PATHS_MAX:
        raise words.wrong(f"1 to {PATHS_MAX} paths")
    return tuple(found)


def guarded(job: Job, paths: tuple[Path, ...]) -> tuple[int, ...]:
    """Return the elements of these paths; the session may have locks there.

    Raises:
        Refused: ERROR_DOES_NOT_EXISTS, NOPERM.
    """
    need_session(job)
    return _guarded(job, tuple(map(job.state.elements.at, paths)))


def _guarded(job: Job, elements: tuple[int, ...]) -> tuple[int, ...]:
    for element in elements:
        job.state.guard(job, element, Want.SYNC)
    return elements


def there(job: Job, paths: tuple[Path, ...]) -> tuple[int, ...]:
    """Return the elements of these paths, on which the session may hold something.

    Raises:
        Refused: NOTHELD, if one does not exist; NOPERM.
    """
    elements = []
    for path in paths:
        element = job.state.elements.find(path)
        if element is None:
            raise Refused("NOTHELD", f"there is no {joined(path).decode()}")
        elements.append(element)
    need_session(job)
    return _guarded(job, tuple(elements))


# ---- LOCK


def _lock(words: Words) -> Call:
    known = _SUB_COMMANDS.get(words.peek())
    if known is not None:
        words.take()
        usage, command = known
        return command(Words(words.rest(), usage))
    mode = Mode.READ if words.has(b"READ") else Mode.WRITE
    if mode is Mode.WRITE:
        words.has(b"WRITE")
    is_group = words.has(b"GROUP")
    paths = paths_in(words)
    if len(paths) > 1 and not is_group:
        raise words.wrong("several paths need GROUP")
    token, may_wait = False, True
    while len(words):
        if words.has(b"TOKEN"):
            token = True
        elif words.has(b"NOWAIT"):
            may_wait = False
        else:
            raise words.wrong()
    return _locking(LockRequest(paths, mode, token, may_wait))


def _locking(request: LockRequest) -> Call:
    def execute(job: Job) -> bytes:
        elements = guarded(job, request.paths)
        for element in elements:
            if job.state.synchronisation.primitive(element) is not None:
                raise Refused("SYNCTYPE", "there is a semaphore or a barrier; DESTROY ends it")
        if request.data is not None:
            _check_binary(job, elements[0])
        return _get(job, elements, request)

    return Call(execute, request.paths, needs_session=True)


def _check_binary(job: Job, element: int) -> None:
    kind = job.state.elements.there(element).type
    if kind is not Type.BINARY:
        raise Refused("WRONGTYPE", kind.name)


def _get(job: Job, elements: tuple[int, ...], request: LockRequest) -> bytes:
    sync, session = job.state.synchronisation, job.asker.session
    claims, waits, mode = sync.claims, sync.waits, request.mode
    name = waits.mine(session, mode, elements)
    if name is not None and waits.there(name).offer:
        waits.join(job, name, token=request.token)
        return sync.claim(job, name)
    is_upgrade, rival, holds_any = False, None, claims.holds_any(session)
    if not holds_any or not all(claims.covers(session, element, mode) for element in elements):
        is_upgrade = holds_any and any(claims.held_by(session, element) for element in elements)
        rival = claims.rival(elements, mode, session, b"" if is_upgrade else None)
    if rival is None:
        token = sync.take(job, elements, mode)
        if name is not None:
            waits.finish(job, name, lambda asked: granted(token, asked=asked))
        if request.data is not None:
            sync.put_data(job, elements[0], request.data)
        return granted(token, asked=request.token)
    if not request.may_wait:
        sync.refuse(rival)
    if name is not None:
        waits.join(job, name, token=request.token)
        return sync.pending(waits.there(name))
    return sync.wait(
        job, mode, elements, is_first=is_upgrade, token=request.token, data=request.data
    )


def _release(words: Words) -> Call:
    paths = paths_in(words)
    words.end()

    def execute(job: Job) -> bytes:
        sync, session = job.state.synchronisation, job.asker.session
        for element in there(job, paths):
            hold = sync.claims.held_by(session, element)
            if hold is None or hold.mode not in LOCKS:
                path = job.state.elements.path(element).decode()
                raise Refused("NOTHELD", f"this session has no lock on {path}")
            sync.release(job, session, element)
        return OK

    return Call(execute, paths, needs_session=True)


def _cancel(words: Words) -> Call:
    paths = paths_in(words)
    words.end()

    def execute(job: Job) -> bytes:
        job.state.synchronisation.cancel(job, there(job, paths), LOCKS)
        return OK

    return Call(execute, paths, needs_session=True)


def _info(words: Words) -> Call:
    path = parse_path(words.take())
    is_stale = words.ends_with(b"STALEREAD")
    words.end()

    def execute(job: Job) -> bytes:
        element = job.state.elements.at(path)
        job.state.guard(job, element, Want.LOOK)
        return job.state.synchronisation.shown(element)

    return Call(execute, (path,), is_change=False, is_stale=is_stale)


_SUB_COMMANDS: Final[Mapping[bytes, tuple[str, Command]]] = {
    b"RELEASE": ("LOCK RELEASE path ...", _release),
    b"CANCEL": ("LOCK CANCEL path ...", _cancel),
    b"INFO": ("LOCK INFO path [STALEREAD]", _info),
}

# ---- ELECT


def _campaign(words: Words) -> Call:
    path = parse_path(words.take())
    data = words.take() if len(words) else None
    words.end()
    if data is not None and len(data) > ELECTED_BYTES_MAX:
        raise Refused("TOOBIG", f"a candidate's data has {ELECTED_BYTES_MAX} bytes at most")
    return _locking(LockRequest((path,), Mode.WRITE, token=True, data=data))


def _leader(words: Words) -> Call:
    path = parse_path(words.take())
    is_stale = words.ends_with(b"STALEREAD")
    words.end()

    def execute(job: Job) -> bytes:
        state = job.state
        element = state.elements.at(path)
        state.guard(job, element, Want.LOOK)
        leader = next(state.synchronisation.claims.of(element, Phase.HELD, Mode.WRITE), None)
        if leader is None:
            return NULL
        _, claim = leader
        parts = claim.client, claim.token.text, state.data.of(element)
        return array([bulk(part) for part in parts])

    return Call(execute, (path,), is_change=False, is_stale=is_stale)


def _resign(words: Words) -> Call:
    path = words.take()
    words.end()
    return _release(Words((path,), words.usage))


LOCK_COMMANDS: Final[Mapping[bytes, tuple[str, Command]]] = {
    b"LOCK": (
        "LOCK [READ|WRITE] [GROUP] path ... [TOKEN] [NOWAIT], or LOCK RELEASE|CANCEL|INFO path",
        _lock,
    ),
    b"ELECT": (
        "ELECT CAMPAIGN path [data], or ELECT RESIGN|LEADER path",
        sub_commands({
            b"CAMPAIGN": ("ELECT CAMPAIGN path [data]", _campaign),
            b"RESIGN": ("ELECT RESIGN path", _resign),
            b"LEADER": ("ELECT LEADER path [STALEREAD]", _leader),
        }),
    ),
}  # fmt: skip
"""Name -> how it is written, and how it is understood."""
