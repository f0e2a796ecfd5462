"""SEMAPHORE INIT size path, ACQUIRE, RELEASE, CANCEL, DESTROY.

Invariants:
1. The number of units that are held or offered never exceeds the size of the semaphore. A session
   has at most one unit, and gets it after those that have waited longer.
2. A semaphore that is being destroyed grants no units. It ends in the entry in which the last
   holder leaves it.

Elsewhere: the next session in line (`holders`).

Source: V2R2, "SEMAPHORE".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from millstream.coordination.core.namespace.commands.command import (
    Call,
    Command,
    Words,
    sub_commands,
)
from millstream.coordination.core.namespace.commands.locks import guarded, need_session, there
from millstream.coordination.core.namespace.paths import Path, parse_path
from millstream.coordination.core.namespace.refused import Refused
from millstream.coordination.core.namespace.state.claims import LOCKS, Mode, Phase
from millstream.coordination.core.namespace.state.holders import Primitive, granted
from millstream.coordination.core.namespace.state.state import Job
from millstream.coordination.core.namespace.state.waits import PENDING
from millstream.vsr.core.values import OK, status

__all__ = ["SEMAPHORE_COMMANDS", "SIZE_MAX", "beginning", "cancelling", "destroying"]

SIZE_MAX: Final = (1 << 31) - 1
"""Largest size of a semaphore or a barrier."""


def _begin(job: Job, path: Path, primitive: Primitive) -> bytes:
    """Raise SYNCTYPE, if there is another one, or there are locks."""
    (element,) = guarded(job, (path,))
    sync = job.state.synchronisation
    known = sync.primitive(element)
    if known is not None and known.is_ending:
        raise Refused(
            "DESTROYING", "the semaphore is being destroyed: it ends when its holders leave it"
        )
    if known is not None and (known.is_barrier, known.size) == primitive[:2]:
        return status(b"EXISTS")
    claimed = any(sync.claims.number(element, phase, mode) for phase in Phase for mode in LOCKS)
    if known is not None or claimed:
        raise Refused(
            "SYNCTYPE", "there is another semaphore or barrier, or locks; end those first"
        )
    sync.set_primitive(element, primitive)
    return OK


def beginning(*, is_barrier: bool) -> Command:
    """Return the command that makes a semaphore or a barrier."""

    def parse(words: Words) -> Call:
        size = words.number(1, SIZE_MAX)
        path = parse_path(words.take())
        words.end()

        def execute(job: Job) -> bytes:
            return _begin(job, path, Primitive(is_barrier=is_barrier, size=size))

        return Call(execute, (path,), needs_session=True)

    return parse


def _semaphore(job: Job, element: int) -> Primitive:
    found = job.state.synchronisation.primitive(element)
    if found is None or found.is_barrier:
        raise Refused("SYNCTYPE", "there is no semaphore; SEMAPHORE INIT makes one")
    return found


def _acquire(words: Words) -> Call:
    path = parse_path(words.take())
    token, may_wait = False, True
    while len(words):
        if words.has(b"TOKEN"):
            token = True
        elif words.has(b"NOWAIT"):
            may_wait = False
        else:
            raise words.wrong()

    def execute(job: Job) -> bytes:
        (element,) = guarded(job, (path,))
        return _acquired(job, element, _semaphore(job, element), token=token, may_wait=may_wait)

    return Call(execute, (path,), needs_session=True)


def _acquired(
    job: Job, element: int, semaphore: Primitive, *, token: bool, may_wait: bool
) -> bytes:
    sync, session = job.state.synchronisation, job.asker.session
    claims, waits = sync.claims, sync.waits
    hold = claims.held_by(session, element)
    if hold is not None:
        return granted(hold.token, asked=token)
    name = waits.mine(session, Mode.UNIT, (element,))
    if name is not None and (may_wait or waits.there(name).offer):
        waits.join(job, name, token=token)
        return sync.claim(job, name) if waits.there(name).offer else PENDING
    if semaphore.is_ending:
        raise Refused(
            "DESTROYING", "the semaphore is being destroyed: it ends when its holders leave it"
        )
    used = sum(claims.number(element, phase, Mode.UNIT) for phase in (Phase.HELD, Phase.OFFERED))
    if used < semaphore.size and not claims.number(element, Phase.WAITING, Mode.UNIT):
        return granted(sync.take(job, (element,), Mode.UNIT), asked=token)
    if not may_wait:
        raise Refused("LOCKED", f"all {semaphore.size} units are taken")
    return sync.wait(job, Mode.UNIT, (element,), token=token)


def _release(words: Words) -> Call:
    path = parse_path(words.take())
    words.end()

    def execute(job: Job) -> bytes:
        (element,) = there(job, (path,))
        sync, session = job.state.synchronisation, job.asker.session
        hold = sync.claims.held_by(session, element)
        if hold is None or hold.mode is not Mode.UNIT:
            raise Refused("NOTHELD", "this session holds no unit")
        sync.release(job, session, element)
        return OK

    return Call(execute, (path,), needs_session=True)


def cancelling(mode: Mode) -> Command:
    """Return the command that ends a session's wait for a unit or for a place."""

    def parse(words: Words) -> Call:
        path = parse_path(words.take())
        words.end()

        def execute(job: Job) -> bytes:
            job.state.synchronisation.cancel(job, there(job, (path,)), (mode,))
            return OK

        return Call(execute, (path,), needs_session=True)

    return parse


def destroying(destroy: Callable[[Job, int, Primitive], bytes], *, is_barrier: bool) -> Command:
    """Return the command that ends the semaphore or the barrier of an element, if it has one."""

    def parse(words: Words) -> Call:
        path = parse_path(words.take())
        words.end()

        def execute(job: Job) -> bytes:
            need_session(job)
            if job.state.elements.find(path) is None:
                return OK  # so a request that is repeated under another number ends well
            (element,) = guarded(job, (path,))
            primitive = job.state.synchronisation.primitive(element)
            if primitive is None or primitive.is_barrier != is_barrier:
                return OK
            return destroy(job, element, primitive)

        return Call(execute, (path,), needs_session=True)

    return parse


def _destroyed(job: Job, element: int, semaphore: Primitive) -> bytes:
    sync = job.state.synchronisation
    if not sync.is_used(element):
        sync.set_primitive(element, None)
        return OK
    sync.set_primitive(element, semaphore._replace(is_ending=True))
    name = sync.waits.mine(job.asker.session, Mode.END, (element,))
    if name is not None:
        return sync.waits.join(job, name)
    return sync.wait(job, Mode.END, (element,))


SEMAPHORE_COMMANDS: Final[Mapping[bytes, tuple[str, Command]]] = {
    b"SEMAPHORE": (
        "SEMAPHORE INIT size path, or SEMAPHORE ACQUIRE|RELEASE|CANCEL|DESTROY path",
        sub_commands({
            b"INIT": (f"SEMAPHORE INIT 1..{SIZE_MAX} path", beginning(is_barrier=False)),
            b"ACQUIRE": ("SEMAPHORE ACQUIRE path [TOKEN] [NOWAIT]", _acquire),
            b"RELEASE": ("SEMAPHORE RELEASE path", _release),
            b"CANCEL": ("SEMAPHORE CANCEL path", cancelling(Mode.UNIT)),
            b"DESTROY": ("SEMAPHORE DESTROY path", destroying(_destroyed, is_barrier=False)),
        }),
    ),
}  # fmt: skip
"""Name -> how it is written, and how it is understood."""
