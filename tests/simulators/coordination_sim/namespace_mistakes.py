"""Mistakes in namespaces, their sessions and subscriptions, which runs with clients have to find.

They are made by all that execute, the shadow too: what has to hold does not hold any more, or what
clients were told cannot be.

Elsewhere: mistakes in replication (`coordination_plants`); more of these, found by schedules of a
state alone (`namespace_plants`), of which some are here, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final
from unittest import mock

from millstream.coordination.core.namespace import audience
from millstream.coordination.core.namespace.audience import Audience, Subscription
from millstream.coordination.core.namespace.commands import subscriptions as subscribing
from millstream.coordination.core.namespace.commands import tree
from millstream.coordination.core.namespace.state import marks
from millstream.coordination.core.namespace.state.claims import Mode
from millstream.coordination.core.namespace.state.elements import Elements, key_of
from millstream.coordination.core.namespace.state.holders import Synchronisation
from millstream.coordination.core.namespace.state.marks import Marks
from millstream.coordination.core.namespace.state.permissions import Permissions
from millstream.coordination.core.namespace.state.queue_items import QueueItems
from millstream.coordination.core.namespace.state.updates import Sight
from millstream.coordination.core.namespace.state.waits import Waits
from millstream.coordination.core.resp import prefixes as front_prefixes
from millstream.coordination.core.resp.pushes import Listener
from millstream.vsr.core import client_table
from millstream.vsr.core.client_table import Past, Verdict
from millstream.vsr.core.effects import Code
from millstream.vsr.core.replica.execution import Execution
from millstream.vsr.core.replica.reads import Reads
from millstream.vsr.core.values import OK
from millstream.vsr.core.versions import Version
from simulators.namespace_plants import PLANTS as OF_STATES

__all__ = ["CONDITIONS", "MISTAKES", "Patch", "instead"]

Patch = Callable[[], AbstractContextManager[Any]]
TOLD = ("a subscriber is told", "who keeps a subscription")
HEARD = ("has heard up to", "who keeps a subscription")
RIGHTS = ("is done without the right", " may not read ")
REFUSED = ("an attempt that was refused", "to what was executed", "is said to have failed")
LEADERS = ("isolate_primary", "move_primary", "client_loss")
SESSIONS = ("short_sessions", "client_silence", "client_restart", "client_loss")
BEHIND = ("partition", "slow_node", "clog")
SNAPSHOTS = ("snapshot_storm", "partition", "clog", "pause")


def instead(where: Any, name: str, mistake: Callable[..., Any]) -> Patch:
    """Return what has something else be done while it is entered."""
    return lambda: mock.patch.object(where, name, mistake)


def _nothing(*_arguments: object, **_more: object) -> None:
    pass


_Session = client_table._Session
_JUDGE = _Session.judge
_GIVE_BACK = QueueItems.give_back
_NOTIFY, _TAKE = Waits._notify, Listener.take
_VALUE, _STALE = front_prefixes._value, Reads._on_stale_read
_ALLOW, _GUARD = Permissions.allow, Permissions.guard
_HEAR, _FROM = Marks.hear, subscribing._from
_WAIT, _HOLD, _CLAIM = Synchronisation.wait, Synchronisation.hold, Synchronisation.claim
_NUMBERED, _KEPT, _UPDATES = tree._numbered, Marks.kept, marks.updates_of
_TELL, _REMARK = Audience._tell, audience.remark


def _numbers_again(job: Any, parent: int, name: bytes) -> bytes:
    elements = job.state.elements
    above = elements.there(parent)
    if not above.nchildren:
        elements.put(parent, above._replace(sequence=0))
    return _NUMBERED(job, parent, name)


def _first_kept_is_lost(marks: Marks, place: Any, after_lsn: int) -> Any:
    kept = _KEPT(marks, place, after_lsn)
    return kept and kept[1:]


def _nothing_is_ever_lost(marks: Marks, place: Any, after_lsn: int) -> Any:
    mark = marks.at(place)
    return None if mark is None else _KEPT(marks, place, max(after_lsn, mark.floor_lsn))


def _deletes_are_quiet(run: Any, elements: Any, is_wanted: Any) -> Any:
    found = _UPDATES(run, elements, is_wanted)
    left = {place: [one for one in some if one.op != b"delete"] for place, some in found.items()}
    return {place: some for place, some in left.items() if some}


def _quiet() -> AbstractContextManager[Any]:
    return mock.patch.multiple(subscribing, updates_of=_deletes_are_quiet)


def _is_not_done(execution: Any) -> None:
    state = execution.state
    for lsn in sorted(state.waiting):
        for ticket in state.waiting[lsn]:
            state.reply(ticket, Code.NOTPRIMARY)
    state.waiting, state.in_flight = {}, {}


def _last_is_new(session: Any, csn: int) -> Any:
    return Verdict(Past.NEW) if csn == session.highest else _JUDGE(session, csn)


def _data_at_once(sync: Any, run: Any, mode: Any, elements: Any, **more: Any) -> bytes:
    if more.get("data") is not None:
        sync.put_data(run, elements[0], more["data"])
    return bytes(_WAIT(sync, run, mode, elements, **more))


def _holds_anew(sync: Any, run: Any, elements: Any, mode: Any) -> Any:
    for element in elements:
        sync.release(run, run.asker.session, element)
    return _HOLD(sync, run, elements, mode)


def _gives_back_quietly(queue: Any, session: int, names: Any) -> int:
    with mock.patch.object(queue, "_freed", _nothing):
        return _GIVE_BACK(queue, session, names)


def _items_are_there(sync: Any, run: Any, name: bytes) -> bytes:
    if sync.waits.there(name).mode is Mode.ITEM:
        return bytes(sync.waits.finish(run, name, lambda _asked: OK))
    return bytes(_CLAIM(sync, run, name))


def _last_kept_again(marks: Marks, place: Any, after_lsn: int) -> Any:
    return _KEPT(marks, place, max(after_lsn - 1, 0))


def _lost_in_silence(subscription: Subscription, payloads: Sequence[bytes]) -> bool:
    _TELL(subscription, payloads)
    return True


def _one_too_many(op: str, lsn: int, version: Version | None = None) -> bytes:
    return _REMARK(op, lsn + 5 if op == "overrun" else lsn, version)


def _hears_anew(marks: Marks, session: int, name: bytes, lsn: int) -> None:
    marks._heard.put(key_of(session) + name, lsn)


def _hears_less(marks: Marks, session: int, name: bytes, lsn: int) -> None:
    _HEAR(marks, session, name, lsn)
    marks._heard.put(key_of(session) + name, lsn)


def _goes_on_one_later(state: Any, asker: Any, request: Any) -> Any:
    lsn = _FROM(state, asker, request)
    return lsn + 1 if request.durable and request.from_lsn is None else lsn


def _some_are_not_told(waits: Waits, run: Any, wait: Any) -> None:
    if wait.mode is not Mode.ITEM:
        _NOTIFY(waits, run, wait)


def _notices_are_gone(listener: Listener, bytes_max: int, protocol: int) -> bytes:
    taken = _TAKE(listener, bytes_max, protocol)
    listener._notices = {}
    return taken


def _nothing_is_seen(name: bytes, text: bytes) -> int | None:
    return 0 if name == b"SEEN" else _VALUE(name, text)


def _answers_at_once(reading: Any, read: Any) -> None:
    _STALE(reading, read._replace(seen=0))


def _allows_for_ever(rights: Permissions, asker: Any, element: int, wanted: int) -> bool:
    once = rights.__dict__.setdefault("once", set())
    key = asker.principal, element, wanted
    if _ALLOW(rights, asker, element, wanted):
        once.add(key)
    return key in once


def _is_not_looked_at(rights: Permissions, run: Any, element: int, want: Any) -> None:
    if not run.is_in_transaction:
        _GUARD(rights, run, element, want)


def _of_state(name: str) -> Patch:
    return OF_STATES[name]


MISTAKES: Final[Mapping[str, tuple[str, Patch, tuple[str, ...], tuple[str, ...]]]] = {
    "ns_ephemeral": (
        "Ephemeral elements outlive their session.",
        instead(Elements, "session_ended", _nothing), ("outlives its session",), SESSIONS,
    ),
    "ns_sequence": (
        "Sequence numbers of names restart once there are no children.",
        instead(tree, "_numbered", _numbers_again), ("is given out again",), SESSIONS,
    ),
    "ns_locks_stay": (
        "Locks outlive their session.", _of_state("locks outlive their session"),
        ("a session that has ended",), SESSIONS,
    ),
    "ns_items_stay": (
        "Items that a session took from a queue stay with it after its end.",
        _of_state("items outlive their session"), ("a session that has ended",), SESSIONS,
    ),
    "ns_old_token": (
        "The token of a lock is that of the offer.", _of_state("the token is that of the offer"),
        ("a token is not a new one", "the token to lead is"), SESSIONS,
    ),
    "ns_no_fence": (
        "A write is accepted with any token.", instead(Synchronisation, "check_token", _nothing),
        ("was written in the turn of", "is written under"), SESSIONS,
    ),
    "ns_elect_data": (
        "The data of a candidate is stored before it leads.",
        instead(Synchronisation, "wait", _data_at_once), ("was said by another",), SESSIONS,
    ),
    "ns_elect_again": (
        "A leader that campaigns again gets another token.",
        instead(Synchronisation, "hold", _holds_anew),
        ("goes on to lead, and its token is another", "a token is not a new one"), SESSIONS,
    ),
    "ns_given_back": (
        "Returned items do not notify clients that wait at a queue.",
        instead(QueueItems, "give_back", _gives_back_quietly), ("and another one waits",),
        SESSIONS,
    ),
    "ns_waits_in_vain": (
        "More clients are notified of queue items than there are.",
        instead(Synchronisation, "claim", _items_are_there), ("and there are none",), SESSIONS,
    ),
    "ns_notices": (
        "Pushed items do not notify clients that wait at a queue.",
        instead(Waits, "_notify", _some_are_not_told), ("and not told",), SESSIONS,
    ),
    "ns_notify_next": (
        "In RESP2, notices are lost once something else is sent.",
        instead(Listener, "take", _notices_are_gone), ("a notice is lost", "a notice says"),
        SESSIONS,
    ),
    "ns_moves": (
        "A tree moves to where its locks conflict.", _of_state("trees move over locks"),
        (": session ", "two sessions have"), LEADERS,
    ),
    "ns_units": (
        "A semaphore offers one unit too many.", _of_state("a semaphore offers one too many"),
        ("too many units are taken",), SESSIONS,
    ),
    "ns_barrier": (
        "A session passes a barrier twice.", _of_state("a barrier lets one go twice"),
        ("a barrier lets", "is answered"), SESSIONS,
    ),
    "ns_undone": (
        "A refused command is not undone.", _of_state("what is refused is not undone"),
        ("refused, and yet changed", "is lost", "of a counter", "cannot be"), LEADERS,
    ),
    "ns_twice": (
        "The last request of a session is executed again if it is repeated.",
        instead(_Session, "judge", _last_is_new), ("is executed twice",), LEADERS,
    ),
    "ns_answers": (
        "Final replies of waiting requests are lost.",
        _of_state("answers to those who waited are lost"),
        ("wait no more, and have no reply",), LEADERS,
    ),
    "ns_not_done": (
        "A former primary says that logged requests were not executed.",
        instead(Execution, "forget_clients", _is_not_done), REFUSED, LEADERS,
    ),
    "ns_silent_gap": (
        "Subscribers are not told that a snapshot replaced the state.",
        instead(Audience, "skip", _nothing), TOLD, SNAPSHOTS,
    ),
    "ns_short_history": (
        "Subscribers are not told that their history is not kept.",
        instead(Marks, "kept", _nothing_is_ever_lost), TOLD, LEADERS,
    ),
    "ns_resume": (
        "A resumed subscription misses one message.", instead(Marks, "kept", _first_kept_is_lost),
        TOLD, LEADERS,
    ),
    "ns_told_again": (
        "A resumed subscription gets its last update again.",
        instead(Marks, "kept", _last_kept_again), (*TOLD, "are kept, and called lost"), LEADERS,
    ),
    "ns_no_room": (
        "Updates that do not fit into the queue of a subscriber are left out.",
        instead(Audience, "_tell", staticmethod(_lost_in_silence)), TOLD, LEADERS,
    ),
    "ns_overrun": (
        "The message of an overrun has too high an LSN.",
        instead(audience, "remark", _one_too_many), TOLD, LEADERS,
    ),
    "ns_start": (
        "The first message of a subscription has an old LSN.",
        instead(Audience, "reach", _nothing), TOLD, LEADERS,
    ),
    "ns_keeps_anew": (
        "A repeated request for a durable subscription moves its position.",
        instead(Marks, "begin_hearing", _hears_anew), HEARD, LEADERS,
    ),
    "ns_keeps_less": (
        "A later acknowledgement moves the position back.",
        instead(Marks, "hear", _hears_less), HEARD, LEADERS,
    ),
    "ns_keeps_later": (
        "A durable subscription skips the entry after its position.",
        instead(subscribing, "_from", _goes_on_one_later),
        (*HEARD[1:], "are kept, and called lost"), LEADERS,
    ),
    "ns_unseen": (
        "The prefix SEEN is ignored.",
        instead(front_prefixes, "_value", _nothing_is_seen), ("a stale read of",), BEHIND,
    ),
    "ns_not_behind": (
        "A member that lacks what a client has seen answers all the same.",
        instead(Reads, "_on_stale_read", _answers_at_once), ("stale read: ", "a stale read of"),
        BEHIND,
    ),
    "ns_rights_stay": (
        "A right that was granted once stays after it is removed.",
        instead(Permissions, "allow", _allows_for_ever), RIGHTS, LEADERS,
    ),
    "ns_rights_exec": (
        "Access lists are not checked in transactions.",
        instead(Permissions, "guard", _is_not_looked_at), RIGHTS[:1], LEADERS,
    ),
    "ns_denied": (
        "A subscription survives the right to read.", instead(Audience, "deny", _nothing),
        ("and may not hear that",), LEADERS,
    ),
    "ns_unchecked": (
        "A subscriber gets updates that it could not read at their entry.",
        instead(audience, "seen_by", lambda *_: Sight.ALL), ("and may not hear that",), LEADERS,
    ),
    "ns_quiet": (
        "Deletions are stored, but not sent.", _quiet, ("nobody is told",), LEADERS,
    ),
}  # fmt: skip
"""Name -> what, the patch that makes it, signs, faults that it needs."""
CONDITIONS: Final = (
    ("rate_per_s", 40), ("snapshot", 10), ("retain", 0), ("members", 3), ("queued", 8),
)  # fmt: skip
"""Much happens in these runs, who is behind needs a snapshot soon, and queues are often full."""
