"""BARRIER INIT size path, WAIT, CANCEL, DESTROY.

Invariants:
1. Sessions leave a barrier in sets of its size. The session that completes a set gets GO at once.
   Each of the others gets OK once, when it repeats its request; this does not enter it into the
   next set.
2. A session that ends or cancels before its set is complete does not count. Afterwards its end has
   no effect.

Elsewhere: waits (`waits`).

Source: V2R2, "Barriers".
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
from millstream.coordination.core.namespace.commands.locks import guarded
from millstream.coordination.core.namespace.commands.semaphores import (
    SIZE_MAX,
    beginning,
    cancelling,
    destroying,
)
from millstream.coordination.core.namespace.paths import parse_path
from millstream.coordination.core.namespace.refused import Refused
from millstream.coordination.core.namespace.state.claims import Mode, Phase
from millstream.coordination.core.namespace.state.holders import Primitive
from millstream.coordination.core.namespace.state.state import Job
from millstream.coordination.core.namespace.state.waits import PENDING
from millstream.vsr.core.values import OK, error, status

__all__ = ["BARRIER_COMMANDS"]


def _wait(words: Words) -> Call:
    path = parse_path(words.take())
    words.end()

    def execute(job: Job) -> bytes:
        (element,) = guarded(job, (path,))
        return _arrived(job, element)

    return Call(execute, (path,), needs_session=True)


def _arrived(job: Job, element: int) -> bytes:
    sync = job.state.synchronisation
    claims, waits = sync.claims, sync.waits
    name = waits.mine(job.asker.session, Mode.PLACE, (element,))
    if name is not None:
        waits.join(job, name)
        return sync.claim(job, name) if waits.there(name).offer else PENDING
    barrier = sync.primitive(element)
    if barrier is None or not barrier.is_barrier:
        raise Refused("SYNCTYPE", "there is no barrier; BARRIER INIT makes one")
    if claims.number(element, Phase.WAITING, Mode.PLACE) + 1 < barrier.size:
        return sync.wait(job, Mode.PLACE, (element,))
    for arrived in [arrived for arrived, _ in claims.of(element, Phase.WAITING, Mode.PLACE)]:
        waits.offer(job, arrived)
    sync.set_primitive(element, barrier._replace(generation=barrier.generation + 1))
    return status(b"GO")


def _destroyed(job: Job, element: int, _: Primitive) -> bytes:
    sync = job.state.synchronisation
    sync.set_primitive(element, None)
    answer = error("DESTROYED", "the barrier was destroyed")
    for name in [name for name, _ in sync.claims.of(element, Phase.WAITING, Mode.PLACE)]:
        sync.waits.finish(job, name, lambda _asked: answer, with_notice=True)
    return OK


BARRIER_COMMANDS: Final[Mapping[bytes, tuple[str, Command]]] = {
    b"BARRIER": (
        "BARRIER INIT size path, or BARRIER WAIT|CANCEL|DESTROY path",
        sub_commands({
            b"INIT": (f"BARRIER INIT 1..{SIZE_MAX} path", beginning(is_barrier=True)),
            b"WAIT": ("BARRIER WAIT path", _wait),
            b"CANCEL": ("BARRIER CANCEL path", cancelling(Mode.PLACE)),
            b"DESTROY": ("BARRIER DESTROY path", destroying(_destroyed, is_barrier=True)),
        }),
    ),
}  # fmt: skip
"""Name -> how it is written, and how it is understood."""
