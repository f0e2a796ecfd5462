"""Tlock and Tgetlock: flock over the network, with locks of elements.

Invariants:
1. A lock request that waits is granted, or ends by Tflush or with its session.
2. The locks of a fid are released when the fid is clunked.

Elsewhere: locks (`namespace.commands.locks`).
"""

from __future__ import annotations

from typing import Any, Final

from millstream.coordination.core.ninep.contents import ask
from millstream.coordination.core.ninep.fids import Ask, Desk, Fid, Job, Pause, Work
from millstream.coordination.core.ninep.refusals import NinepError

__all__ = ["POLL_MS_MAX", "POLL_MS_MIN", "lock", "query_lock", "unlock"]

POLL_MS_MIN: Final = 50.0
POLL_MS_MAX: Final = 500.0
"""How often a lock that is waited for is asked for again: twice as rarely each time."""
_READ, _WRITE, _UNLOCK = 0, 1, 2
_SUCCESS, _BLOCKED, _ERROR = 0, 1, 2
_BLOCKS: Final = 1
_TO_THE_END: Final = (0, (1 << 63) - 1, (1 << 64) - 1)
_GIVEN_UP: Final = "NOTHELD"


def lock(desk: Desk, job: Job, values: tuple[Any, ...]) -> Work:
    """Tlock."""
    number, kind, flags, start, length = values[:5]
    fid = _data(desk, number)
    if start or length not in _TO_THE_END or kind > _UNLOCK:
        return (_ERROR,)
    if kind == _UNLOCK:
        yield from unlock(fid)
        return (_SUCCESS,)
    mode = b"READ" if kind == _READ else b"WRITE"
    words = (b"LOCK", mode, fid.path) + (() if flags & _BLOCKS else (b"NOWAIT",))
    pause_ms = POLL_MS_MIN
    while True:
        try:
            reply = yield from ask(Ask(fid.attach, words, is_change=True))
        except NinepError as refused:
            if refused.code == "LOCKED":
                return (_BLOCKED,)
            raise
        if reply != b"PENDING":
            break
        if not job.is_flushed and desk.fids.get(number) is fid:
            yield Pause(pause_ms)
        if job.is_flushed or desk.fids.get(number) is not fid:
            if not (yield from _cancelled(fid)):
                break
            raise NinepError("INTERRUPTED")
        pause_ms = min(2 * pause_ms, POLL_MS_MAX)
    fid.is_locked = True
    if desk.fids.get(number) is not fid:
        yield from unlock(fid)
    return (_SUCCESS,)


def _cancelled(fid: Fid) -> Any:
    """Give up a lock that is waited for; it may have been granted."""
    try:
        yield from ask(Ask(fid.attach, (b"LOCK", b"CANCEL", fid.path), is_change=True))
    except NinepError as refused:
        if refused.code != _GIVEN_UP:
            raise
        return False
    return True


def unlock(fid: Fid) -> Work:
    """Release what a fid has; nothing is no error."""
    fid.is_locked = False
    try:
        yield from ask(Ask(fid.attach, (b"LOCK", b"RELEASE", fid.path), is_change=True))
    except NinepError as refused:
        if refused.code not in (_GIVEN_UP, "ERROR_DOES_NOT_EXISTS"):
            raise
    return ()


def query_lock(desk: Desk, job: Job, values: tuple[Any, ...]) -> Work:
    """Tgetlock: whether somebody else's lock is in the way."""
    number, kind, start, length, process, _ = values
    fid = _data(desk, number)
    found = yield from ask(Ask(fid.attach, (b"LOCK", b"INFO", fid.path)))
    mine = yield from ask(Ask(fid.attach, (b"SESSION", b"INFO")))
    holders = found[b"holders"] if found else []
    for holder in holders:
        held = _WRITE if holder[b"mode"] == b"WRITE" else _READ
        if holder[b"client"] != mine[b"client_id"] and _WRITE in (held, kind):
            return held, 0, 0, 0, holder[b"client"]
    return _UNLOCK, start, length, process, b""


def _data(desk: Desk, number: int) -> Fid:
    fid = desk.fid(number)
    if fid.file != b".data":
        raise NinepError("BADARG")
    return fid
