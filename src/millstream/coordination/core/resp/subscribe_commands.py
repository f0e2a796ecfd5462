"""SUBSCRIBE, UNSUBSCRIBE, SUBACK, NOTIFY.

    SUBSCRIBE path ...     the group is asked whether it is allowed, and whether marks exist;
                           if not, a mark is logged; then it begins on this member

Invariants:
1. A subscription is requested once all earlier requests are answered, and nothing is done
   meanwhile. So its confirmation comes in order, and before all of its messages.
2. On the primary a subscription begins with a state that a quorum confirmed, elsewhere with one
   that is no older than what the client has seen.

Elsewhere: what may be subscribed to (`namespace.commands.subscriptions`), waiting messages
(`pushes`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from millstream.coordination.core.backend import NO_LOGIN
from millstream.coordination.core.namespace.admission import ClientRequest, admit
from millstream.coordination.core.namespace.commands.command import Words
from millstream.coordination.core.namespace.commands.subscriptions import (
    MARK,
    SUBSCRIBE_COMMANDS,
    SubscribeRequest,
    request_of,
)
from millstream.coordination.core.namespace.paths import Path, joined
from millstream.coordination.core.namespace.refused import Refused
from millstream.coordination.core.namespace.state.run import Notice
from millstream.coordination.core.resp.session_commands import group_asked
from millstream.vsr.core.effects import Code, Reply
from millstream.vsr.core.values import NULL, OK, array, bulk, error, integer, push

if TYPE_CHECKING:
    from millstream.coordination.core.resp.prefixes import Prefixes
    from millstream.coordination.core.resp.session import RespSession

__all__ = ["acknowledge_command", "notify_command", "subscribe_command", "unsubscribe_command"]

_DIGITS_MAX: Final = 10


def unsubscribe_command(resp: RespSession, argv: list[bytes]) -> None:
    """UNSUBSCRIBE [path ...]: end these subscriptions, or all, and confirm each."""
    listener = resp.listener
    subscriber = listener.subscriber
    for path in argv[1:] or list(subscriber.subscriptions) or [b""]:
        subscriber.end(path)
        shown = bulk(path) if path else NULL
        resp.say(push((bulk(b"unsubscribe"), shown, integer(len(subscriber)))))
    if not subscriber.subscriptions:
        listener.end()


def subscribe_command(resp: RespSession, argv: list[bytes]) -> bytes | None:
    """SUBSCRIBE."""
    usage, _ = SUBSCRIBE_COMMANDS[b"SUBSCRIBE"]
    try:
        request = request_of(Words(argv[1:], usage))
    except Refused as refused:
        return refused.value
    subscribing = _Subscribing(resp, request, tuple(argv), resp.prefixes)
    resp.when_answered(subscribing.begin)
    return None


def acknowledge_command(resp: RespSession, argv: list[bytes]) -> bytes | None:
    """SUBACK, in the session of the group that is named, or was used last."""
    found = group_asked(resp, argv, 3)
    if found is None:
        return error("BADARG", "SUBACK name lsn [NAMESPACE root]")
    gid, argv = found
    request = admit(argv, resp.prefixes.stamp)
    if isinstance(request, ClientRequest):
        request = request._replace(key=b"/")  # no register; whose it is says the session
    resp.submit(request, resp.prefixes._replace(gid=gid))
    return None


def notify_command(resp: RespSession, argv: list[bytes]) -> bytes | None:
    """NOTIFY NEXT: the next notice of a session, from the node that leads its group.

    It is a sign of life as `SESSION PING` is, and refused as that is.
    """
    found = group_asked(resp, argv, 2)
    gid, words = found if found is not None else (0, [])
    match [word.upper() for word in words[1:]]:
        case [b"NEXT"]:
            most_ms = 0
        case [b"NEXT", b"BLOCK", digits] if digits.isdigit() and len(digits) < _DIGITS_MAX:
            most_ms = int(digits)
        case _:
            return error("BADARG", "NOTIFY NEXT [BLOCK ms] [NAMESPACE root]")
    session = resp.sessions.get(gid)
    if session is None:
        return error("SESSIONEXPIRED", "this connection has no session; SESSION OPEN opens one")
    if session.is_moved:
        return error("SESSIONMOVED", "another connection has resumed it")
    slot = resp.slot(gid)

    def told(notice: Notice | None) -> None:
        slot.fill(NULL if notice is None else _noted(notice))

    def known(reply: Reply) -> None:
        if reply.code is Code.OK:
            ttl_ms, _ = map(int, reply.value.split())
            _next_notice(resp, gid, min(most_ms, ttl_ms // 3), told)
        else:
            slot.fill(resp.refusal(gid, reply))

    resp.backend.resume(gid, session.instance, session.number, session.secret, known)
    return None


def _next_notice(
    resp: RespSession, gid: int, most_ms: int, told: Callable[[Notice | None], None]
) -> None:
    listener = resp.listener
    if (notice := listener.next_notice(gid)) is not None or not most_ms or resp.is_gone:
        return told(notice)
    listener.wait(gid, told)
    resp.call_later(most_ms, lambda: listener.give_up(gid, told))
    return None


def _noted(notice: Notice) -> bytes:
    return array((bulk(b"retry"), bulk(notice.path), bulk(notice.command)))


class _Subscribing:
    """One SUBSCRIBE on its way; nothing else is done on its connection meanwhile."""

    def __init__(
        self,
        resp: RespSession,
        request: SubscribeRequest,
        argv: tuple[bytes, ...],
        prefixes: Prefixes,
    ) -> None:
        seen = max(prefixes.seen, request.from_lsn or 0)  # who goes on from there has seen it
        self._resp, self._request, self._prefixes = resp, request, prefixes._replace(seen=seen)
        self._key = joined(request.paths[0])
        self._look = ClientRequest(False, (b"SUBSCRIBE", *argv[1:]), self._key)
        self._gid = 0

    def begin(self) -> None:
        """Find out of which group it is, and open a session if it needs one."""
        resp, request, prefixes = self._resp, self._request, self._prefixes
        gids = {resp.backend.group_of(joined(path)) for path in request.paths}
        if prefixes.gid is None and len(gids) > 1:
            return resp.say(
                error(
                    "CROSS_NAMESPACE",
                    "these paths are in several groups; use one SUBSCRIBE for each",
                )
            )
        self._gid = resp.gid = prefixes.gid if prefixes.gid is not None else gids.pop()
        session = resp.sessions.get(self._gid)
        if session is not None and session.is_moved:
            return resp.say(error("SESSIONMOVED", "another connection has resumed it"))
        if session is None and (request.durable or prefixes.csn is not None):
            return resp.open_first(self._gid, self._ask)
        return self._ask()

    def _ask(self, *, is_stale: bool = False) -> None:
        """Start it with the primary's state, or else with that of this member."""
        look = self._look._replace(is_stale=is_stale)
        self._go_on(look, lambda reply: self._looked(reply, is_stale=is_stale))

    def _go_on(self, asked: ClientRequest, then: Callable[[Reply], None]) -> None:
        resp = self._resp
        resp.is_blocked = True
        resp.ask(self._gid, asked, self._prefixes, lambda reply: resp.unblock(lambda: then(reply)))

    def _looked(self, reply: Reply, *, is_stale: bool) -> None:
        if reply.code is Code.NOTPRIMARY and not is_stale:
            self._ask(is_stale=True)
        elif reply.code is Code.OK and reply.value == MARK:
            logged = (b"%d" % self._prefixes.stamp, *self._request.mark)
            self._go_on(ClientRequest(True, logged, self._key), self._begin)
        else:
            self._begin(reply)

    def _begin(self, reply: Reply) -> None:
        """Begin, if all that was asked for is done."""
        resp, gid = self._resp, self._gid
        if resp.is_stranger:
            return resp.say(NO_LOGIN)
        if (reply.code, reply.value) == (Code.OK, OK):
            subscriber = resp.listener.subscriber
            subscriber.asker = resp.asker(gid)
            reply = resp.backend.subscribe(gid, subscriber, self._request, self._confirm)
        if reply.code is Code.SESSIONMOVED:
            resp.note_moved(gid)
        told, wanted = resp.backend.told_lsn(gid), self._request.from_lsn
        is_ahead = told is not None and wanted is not None and wanted > told
        if reply.code is Code.BEHIND and is_ahead:
            # No member has got so far, neither has this one by waiting: it is another history.
            resp.say(error("HISTORY_LOST", str(told)))
        elif reply.code is not Code.OK:
            resp.say(resp.refusal(gid, reply))
        elif reply.value:
            resp.say(reply.value)
        resp.note_seen(gid, reply.lsn if reply.code is Code.OK else 0)
        return None

    def _confirm(self, path: Path) -> None:
        """Report that a subscription begins."""
        listener = self._resp.listener
        listener.is_on = True
        number = integer(len(listener.subscriber) + 1)
        self._resp.say(push((bulk(b"subscribe"), bulk(joined(path)), number)))
