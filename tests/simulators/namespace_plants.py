"""Mistakes planted into namespaces, their waits and the client table; schedules have to find them.

Elsewhere: the schedules (`namespace_callers`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Final
from unittest import mock

from millstream.coordination.core.group_state import GroupState
from millstream.coordination.core.namespace.commands.command import parse
from millstream.coordination.core.namespace.machine import COMMANDS, Namespace
from millstream.coordination.core.namespace.state.claims import Claims, Mode
from millstream.coordination.core.namespace.state.elements import key_of
from millstream.coordination.core.namespace.state.holders import Synchronisation
from millstream.coordination.core.namespace.state.queue_items import Queues
from millstream.coordination.core.namespace.state.run import Run
from millstream.coordination.core.namespace.state.waits import Waits
from millstream.vsr.core import client_table
from millstream.vsr.core.client_table import ClientTable, Past, Verdict
from millstream.vsr.core.replica.execution import Execution

__all__ = ["PLANTS"]

_Session = client_table._Session
Plant = Callable[[], AbstractContextManager[Any]]


def _instead(where: type, name: str, mistake: Callable[..., Any]) -> Plant:
    return lambda: mock.patch.object(where, name, mistake)


def _nothing(*_arguments: object, **_more: object) -> None:
    pass


def _refused_is_gone(session: Any, csn: int) -> Verdict:
    if kept := session.replies.get(csn):
        return Verdict(Past.STORED, *kept)
    return Verdict(Past.GONE if csn <= session.highest else Past.NEW)


def _forgets_what_it_executed(session: Any, csn: int) -> Verdict:
    if kept := session.replies.get(csn):
        return Verdict(Past.STORED, *kept)
    gone = csn <= session.highest - client_table.WINDOW_MAX
    return Verdict(Past.GONE if gone else Past.NEW)


def _evicts_the_lowest(session: Any, csn: int, value: bytes, lsn: int) -> None:
    session.executed.add(csn)
    session.reach(csn)
    session.replies[csn] = (value, lsn)
    while len(session.replies) > client_table.REPLIES_MAX:
        del session.replies[min(session.replies)]


def _executes_whatever_is_logged(execution: Any, entry: Any) -> Any:
    session, table = entry.header.session, execution.state.table
    with mock.patch.object(execution, "judge", return_value=Verdict(Past.NEW)):
        return _EXECUTE(execution, entry) if session in table else (None, b"", 0)


def _pending_is_final(execution: Any, entry: Any) -> Any:
    with mock.patch.object(execution.state.machine, "waiting", return_value=None):
        return _EXECUTE(execution, entry)


def _copies_wait_again(machine: Any, job: Any, words: list[bytes]) -> bytes:
    sync, asker = machine.state.synchronisation, job.asker
    waiting = sync.waits.opened(asker.session, asker.csn)
    if waiting is not None and asker.is_claim:
        return bytes(sync.come_again(job, waiting))
    return parse(words, COMMANDS).execute(job)


def _answers_are_lost(state: GroupState) -> list[Any]:
    state.answers.clear()
    return []


def _polls_stay_open(waits: Any, run: Run, name: bytes, *, token: bool = False) -> bytes:
    wait = waits.there(name)
    reply = _JOIN(waits, run, name, token=token)
    now = waits.there(name)
    lost = [csn for csn in wait.csns if csn not in now.csns]
    run.answers[:] = [one for one in run.answers if one.csn not in [csn for csn, _ in lost]]
    for csn, _ in lost:
        waits.open.put(key_of(wait.session) + key_of(csn), name)
    waits._waits.put(name, now._replace(csns=(now.csns[0], *lost, *now.csns[1:])))
    return reply


def _token_of_the_offer(sync: Any, run: Run, name: bytes) -> bytes:
    before, run.version = run.version, run.version._replace(lsn=sync.waits.there(name).offer)
    try:
        return _CLAIM(sync, run, name)
    finally:
        run.version = before


def _a_unit_too_many(sync: Any, run: Run, element: int) -> None:
    semaphore = sync.primitive(element)
    if semaphore is not None and not semaphore.is_barrier:
        held = sync.claims.number(element, 0, Mode.UNIT)
        sync._offer_first(run, element, Mode.UNIT, semaphore.size + 1 - held)


def _releases_stay(waits: Any, run: Run, name: bytes, reply: Any, **more: Any) -> bytes:
    wait = waits.there(name)
    if wait.mode is Mode.PLACE and wait.offer:
        return bytes(reply(False))
    return _FINISH(waits, run, name, reply, **more)


_EXECUTE = Execution._execute
_JOIN, _FINISH, _CLAIM = Waits.join, Waits.finish, Synchronisation.claim

PLANTS: Final[Mapping[str, Plant]] = {
    "a request that was refused is gone": _instead(_Session, "judge", _refused_is_gone),
    "executed without a reply is new": _instead(_Session, "judge", _forgets_what_it_executed),
    "the lowest reply goes first": _instead(_Session, "store", _evicts_the_lowest),
    "what is logged is executed": _instead(Execution, "_execute", _executes_whatever_is_logged),
    "PENDING is a final reply": _instead(Execution, "_execute", _pending_is_final),
    "a request waits twice": _instead(Namespace, "_executed", _copies_wait_again),
    "answers to those who waited are lost": _instead(
        GroupState, "take_answers", _answers_are_lost
    ),
    "who waits has used no number": _instead(ClientTable, "wait", _nothing),
    "all requests of a wait stay open": _instead(Waits, "join", _polls_stay_open),
    "waits outlive their element": _instead(Synchronisation, "deleted", _nothing),
    "trees move over locks": _instead(Synchronisation, "_guard_tree", _nothing),
    "locks meet by force": _instead(Synchronisation, "_refuse_meeting", _nothing),
    "trees move under offers": _instead(Synchronisation, "_refuse_offered", _nothing),
    "claims do not move with their tree": _instead(Claims, "moved", _nothing),
    "own locks count for nothing": _instead(Claims, "covers", lambda *_: False),
    "the token is that of the offer": _instead(Synchronisation, "claim", _token_of_the_offer),
    "a semaphore offers one too many": _instead(Synchronisation, "_offer_units", _a_unit_too_many),
    "a semaphore never ends": _instead(Synchronisation, "_end_if_unused", _nothing),
    "a barrier lets one go twice": _instead(Waits, "finish", _releases_stay),
    "nobody looks who is next": _instead(Waits, "free", _nothing),
    "locks outlive their session": _instead(Synchronisation, "session_ended", _nothing),
    "items outlive their session": _instead(Queues, "session_ended", _nothing),
    "what is refused is not undone": _instead(Run, "roll_back", _nothing),
    "offers never end": _instead(GroupState, "offers", lambda *_: iter(())),
}
"""By name; each lets its mistake be there while it is entered."""
