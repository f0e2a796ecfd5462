"""The connection of one client: parses requests, sends them to the groups, answers in order.

    resp.feed(data); resp.advance()      # bytes that came
    resp.take_output()                   # bytes to send, whenever `on_output` was called

Invariants:
1. Replies leave in the order of their requests, whatever the order of their completion.
2. Requests take effect in order. Changes are sent without waiting for each other, and so are
   reads. But a read is sent only once all earlier changes are answered, and a change only once all
   earlier reads are. While a login or the opening of a session is in progress, nothing else is
   done (`is_blocked`).
3. At most `OUTSTANDING_MAX` requests wait for replies. No more are examined while `OUT_BYTES_MAX`
   of replies wait to be sent, or wait for earlier ones. Reads in progress are bounded by the
   length of the last replies; beyond `REPLIES_BYTES_MAX` they are refused. Where there are users,
   a client without a login sends requests of at most `LOGIN_BYTES_MAX`.
4. A request that changes something carries its session and number if the connection has a session.
   A number without a session opens one first.
5. Any data on a connection shows each group whose session is used there that its client is alive.
6. A stale read is never older than what was returned on this connection before.
7. Messages leave between replies, and only while less than `OUT_BYTES_MAX` waits to be sent.

Elsewhere: bytes (`protocol`), prefixes (`prefixes`), commands of clients (`common_commands`), of
sessions (`session_commands`), messages (`pushes`), commands of the state machine (given as a table
of parsers), sockets (`aio.resp_server`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from millstream.coordination.core.backend import NO_LOGIN, Backend, Done, Guard, Principal
from millstream.coordination.core.namespace.admission import ClientRequest, Parser, forced
from millstream.coordination.core.namespace.commands.transactions import Transaction
from millstream.coordination.core.namespace.state.access_lists import ADMINS
from millstream.coordination.core.namespace.state.run import Asker
from millstream.coordination.core.resp.prefixes import (
    CSN_MAX,
    NO_PREFIXES,
    PREFIXES,
    Prefixes,
    prefixes_of,
)
from millstream.coordination.core.resp.protocol import RequestCutter, render
from millstream.coordination.core.resp.pushes import BARRED, Listener
from millstream.errors import RemoteProtocolError
from millstream.model.limits import LOGIN_BYTES_MAX
from millstream.vsr.core.client_table import TIME_OUT_MS
from millstream.vsr.core.effects import Code, Reply
from millstream.vsr.core.entries import ID_BYTES, Body, Kind
from millstream.vsr.core.values import error
from millstream.vsr.core.versions import Version

__all__ = [
    "OUTSTANDING_MAX",
    "OUT_BYTES_MAX",
    "READS_FIRST",
    "REPLIES_BYTES_MAX",
    "SECRET_BYTES",
    "TURN_REQUESTS_MAX",
    "Handler",
    "RespSession",
    "Session",
    "Slot",
]

OUTSTANDING_MAX: Final = 4096
"""Requests of one connection whose replies are not known yet."""
OUT_BYTES_MAX: Final = 1024 * 1024
"""Replies of one connection that wait to be sent while more requests are looked at."""
REPLIES_BYTES_MAX: Final = 16 * OUT_BYTES_MAX
"""Replies of one connection that wait to be sent; further reads are refused as BUSY."""
READS_FIRST: Final = 2
"""Reads of a connection that are under way before it is known how long replies are."""
TURN_REQUESTS_MAX: Final = 128
"""Most requests of one connection in one turn of the loop, so that others have theirs."""
SECRET_BYTES: Final = 16
"""Bytes of the secret that allows a client to resume a session on another connection."""
_OF_BROWSERS: Final = frozenset((b"POST", b"HOST:"))
"""What begins lines of HTTP: behind them comes what a page had a browser say, not its user."""
_BEFORE_LOGIN: Final = _OF_BROWSERS | {b"HELLO", b"AUTH", b"PING", b"QUIT", b"RESET"}
_NO_GROUPS: Final[tuple[bytes, ...]] = ()
_OF_ADMINS: Final = (ADMINS,)
_BESIDE_TRANSACTION: Final = frozenset((b"EXEC", b"DISCARD", b"MULTI", b"RESET", b"QUIT"))
_WHY: Final = {
    Code.NOQUORUM: "too few members answer; try again",
    Code.BUSY: "too much is under way; try again",
    Code.UNKNOWN: "whether it was done is not known; repeat it with the same CSN",
    Code.CSNGONE: "it is too old to be known; it is not done now",
    Code.CONFLICT: "several groups have this number: VDS shows their ids; delete all but one",
    Code.NOPERM: "the secret is another one",
    Code.SESSIONMOVED: "another connection uses it; SESSION RESUME it to go on here",
    Code.SESSIONEXPIRED: "there is no such session any more; open one with SESSION OPEN",
}


class Session:
    """A session that a connection uses; `csn` is the highest number given out."""

    __slots__ = ("csn", "instance", "is_moved", "number", "secret", "ttl_ms")

    def __init__(
        self, instance: bytes, number: int, secret: bytes, ttl_ms: int, csn: int = 0
    ) -> None:
        self.instance, self.number, self.secret = instance, number, secret
        self.ttl_ms, self.csn = ttl_ms, csn
        self.is_moved = False


class Slot:
    """The place of a reply that is not known yet."""

    __slots__ = ("_protocol", "_resp", "gid", "text")

    def __init__(self, resp: RespSession, gid: int, protocol: int) -> None:
        self._resp, self.gid, self._protocol = resp, gid, protocol
        self.text = b""

    def done(self, reply: Reply) -> None:
        """Take a group's reply."""
        resp = self._resp
        if reply.code is Code.SESSIONMOVED:
            resp.note_moved(self.gid)
        if resp.is_overfull:
            reply = _NOT_READ
        value = reply.value if reply.code is Code.OK else resp.refusal(self.gid, reply)
        resp.note_seen(self.gid, reply.lsn)
        self.fill(value)
        resp.landed(len(value))

    def fill(self, value: bytes) -> None:
        """Take the reply."""
        self.text = render(value, self._protocol)
        self._resp.filled(self)


_NOT_READ: Final = Reply(0, Code.BUSY)
_NO_NUMBERS: Final = Reply(
    0, Code.OK, error("BADARG", "the session has no numbers left; open a new one")
)


Handler = Callable[["RespSession", list[bytes]], bytes | None]
"""Carries out any other command: a value, or None if a slot was taken."""


class RespSession:
    """A connection. `handlers` are the commands besides those of the state machine.

    Args:
        backend, guard: the node.
        vocabulary: the commands of the state machine.
        handlers: all others, by name.
        number: of the connection, shown to people.
        attached: which connection a session is used on, shared by those of the node.
        chance_bytes: returns so many bytes that nobody can guess.
        on_output: called when there is something to send that was not asked for by `advance`.
        call_later: has something called after so many ms.
    """

    def __init__(
        self,
        backend: Backend,
        guard: Guard,
        vocabulary: Mapping[bytes, Parser],
        handlers: Mapping[bytes, Handler],
        *,
        number: int,
        attached: dict[tuple[int, int], RespSession],
        chance_bytes: Callable[[int], bytes],
        on_output: Callable[[RespSession], None],
        call_later: Callable[[float, Callable[[], None]], object],
    ) -> None:
        self.backend, self.guard = backend, guard
        self.number = number
        self.attached = attached
        self.chance_bytes, self.call_later = chance_bytes, call_later
        self.name = b""
        self.source = ""
        """The client's address, without a port."""
        self.protocol = 2
        self.principal: Principal | None = None
        self.sessions: dict[int, Session] = {}
        self.prefixes = NO_PREFIXES
        """The prefixes of the current command, if it goes to no state machine."""
        self.gid: int | None = None
        """The group used last."""
        self.is_blocked = self.is_closing = self.is_gone = False
        self.give_up: Callable[[], object] | None = None
        """Ends the check of a password."""
        self._vocabulary, self._handlers = vocabulary, handlers
        self._on_output = on_output
        self.cutter = RequestCutter()
        self._queue: deque[list[bytes]] = deque()
        self._slots: deque[Slot] = deque()
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._is_advancing = False
        self._is_fresh = self._is_heard = False
        self._principal, self._groups = b"", _NO_GROUPS
        self._flying = 0
        self._reads_max = READS_FIRST
        self._is_changing = False
        self._held: tuple[ClientRequest, Prefixes] | None = None
        self.transaction: Transaction | None = None
        """What is collected since MULTI."""
        self._seen: dict[int, int] = {}
        self.listener = Listener(self.wake, self.sessions)
        """What is told here without being asked."""
        self._then: Callable[[], None] | None = None

    # ---- bytes in and out

    def feed(self, data: bytes) -> None:
        """Take what came; `advance` looks at it."""
        self.cutter.feed(data)
        self._is_fresh = True

    def advance(self) -> bool:
        """Go on with what came; return whether there may be more to do at once."""
        budget = TURN_REQUESTS_MAX
        queue, slots = self._queue, self._slots
        self._is_advancing = True
        while budget and not self._has_to_wait and len(slots) < OUTSTANDING_MAX:
            if not queue:
                if self.cutter.is_spent:
                    break
                is_there = self._cut(budget)
                budget -= self.cutter.empty
                if not is_there:
                    break
            self._run(queue.popleft())
            budget -= 1
        self._is_advancing = False
        if not self.listener.is_empty and self._out_bytes < OUT_BYTES_MAX and not self.is_closing:
            self._put(self.listener.take(OUT_BYTES_MAX - self._out_bytes, self.protocol))
        if self._is_fresh:
            if self.sessions and not (self._is_heard and len(self.sessions) == 1):
                self.show_life()
            self._is_fresh = self._is_heard = False
        return not budget or (self._out_bytes >= OUT_BYTES_MAX and self.has_output)

    @property
    def is_clogged(self) -> bool:
        """Whether no more input is handled until replies are known, or sent."""
        return self._has_to_wait or len(self._slots) >= OUTSTANDING_MAX

    @property
    def _has_to_wait(self) -> bool:
        return self.is_blocked or self.is_closing or self._out_bytes >= OUT_BYTES_MAX

    def show_life(self) -> None:
        """Tell the groups of the sessions used here that their client lives."""
        for gid, session in self.sessions.items():
            if not session.is_moved:
                self.backend.touch(gid, session.number)

    def _cut(self, most: int) -> bool:
        try:
            self._queue.extend(self.cutter.cut(most))
        except RemoteProtocolError as failure:
            self._refuse_for_good(failure.code, str(failure))
        if self._queue:
            return True
        if self.is_stranger and self.cutter.unfinished_bytes > LOGIN_BYTES_MAX:
            self._refuse_for_good("too_large", f"at most {LOGIN_BYTES_MAX} bytes before a log-in")
        return False

    def _refuse_for_good(self, code: str, why: str) -> None:
        self.say(error("TOOBIG" if code == "too_large" else "ERR", why))
        self.is_closing = True

    @property
    def has_output(self) -> bool:
        """Whether something is to be sent."""
        return bool(self._out)

    @property
    def is_done(self) -> bool:
        """Whether everything is sent, and the connection is to be closed."""
        return self.is_closing and not self._slots and not self._out

    @property
    def waiting_bytes(self) -> int:
        """Bytes of known replies and messages that are not taken."""
        return self._out_bytes + self.listener.waiting_bytes

    def take_output(self) -> bytes:
        """Return what is to be sent."""
        data = self._out[0] if len(self._out) == 1 else b"".join(self._out)
        self._out = []
        self._out_bytes -= len(data)
        return data

    def close(self) -> None:
        """Note that the connection is gone. Later replies are dropped."""
        self.is_gone = self.is_closing = True
        if self.give_up is not None:
            self.give_up()
        self.detach()
        self.listener.end()
        self._slots.clear()
        self._then = None
        self._queue.clear()
        self._out, self._out_bytes = [], 0

    # ---- replies

    def say(self, value: bytes) -> None:
        """Answer the request in hand."""
        text = render(value, self.protocol)
        if self._slots:
            slot = Slot(self, 0, self.protocol)
            slot.text = text
            self._slots.append(slot)
            self._out_bytes += len(text)
        else:
            self._put(text)

    def _put(self, text: bytes) -> None:
        if text:
            self._out.append(text)
            self._out_bytes += len(text)

    def slot(self, gid: int = 0) -> Slot:
        """Take the place of the reply to the request in hand; it has to be filled once."""
        slot = Slot(self, gid, self.protocol)
        self._slots.append(slot)
        return slot

    def filled(self, slot: Slot) -> None:
        """A reply is known: it leaves, with those behind it that are known, if it is first."""
        slots = self._slots
        self._out_bytes += len(slot.text)
        if not slots or slots[0] is not slot:
            return self.wake() if self._out_bytes >= OUT_BYTES_MAX else None  # it is counted
        while slots and (text := slots[0].text):
            slots.popleft()
            self._out.append(text)
        self.wake()
        if not slots and self._then is not None:
            then, self._then = self._then, None
            self.unblock(then)
        return None

    def wake(self) -> None:
        """Check whether something waits to be sent."""
        if not self._is_advancing:
            self._on_output(self)

    def when_answered(self, then: Callable[[], None]) -> None:
        """Do this once all requests before the one in hand are answered; others wait."""
        if self._slots:
            self.is_blocked, self._then = True, then
        else:
            then()

    def unblock(self, go_on: Callable[[], None]) -> None:
        """What requests waited for is there: do what it was for, then the others."""
        if self.is_gone:
            return
        self.is_blocked = False
        go_on()
        if not self.is_blocked and not self._is_advancing:
            self._on_output(self)

    @property
    def is_overfull(self) -> bool:
        """Whether what was read cannot be kept until it is sent."""
        return self._out_bytes >= REPLIES_BYTES_MAX and not self._is_changing

    def landed(self, size: int) -> None:
        """A group has answered: go on with what waited for the last of such answers."""
        self._flying -= 1
        if not self._is_changing:
            self._reads_max = min(self._reads_max + 1, OUT_BYTES_MAX // (size + 1) + 1)
        if self._held is not None and not self._flying:
            held, self._held = self._held, None
            self.unblock(lambda: self.submit(*held))

    def note_seen(self, gid: int, lsn: int) -> None:
        """Remember how new a state this client has been shown."""
        if lsn > self._seen.get(gid, 0):
            self._seen[gid] = lsn

    def note_moved(self, gid: int) -> None:
        """Learn that the session of a group is used on another connection, perhaps elsewhere."""
        session = self.sessions.get(gid)
        if session is not None and not session.is_moved:
            session.is_moved = True
            self.attached.pop((gid, session.number), None)

    def refusal(self, gid: int, reply: Reply) -> bytes:
        """Return what a reply that is not OK says."""
        code = reply.code
        if code is Code.NOTPRIMARY:
            epoch, view, address = self.backend.where(gid)
            return error("NOTPRIMARY", f"{gid} {epoch}:{view} {address or '?'}")
        if code is Code.BEHIND:
            epoch, view, _ = self.backend.where(gid)
            return error("BEHIND", Version(epoch, view, reply.lsn).text.decode())
        return error(code.value, reply.value.decode() or _WHY.get(code, ""))

    # ---- requests

    def _run(self, argv: list[bytes]) -> None:
        name = argv[0].upper()
        if name in PREFIXES:
            return self._run_prefixed(argv)
        if self.is_stranger and name not in _BEFORE_LOGIN:
            return self.say(NO_LOGIN)
        if self.listener.bars(name, self.protocol):
            return self.say(BARRED)
        if self.transaction is not None and name not in _BESIDE_TRANSACTION:
            return self.say(self.transaction.queue(argv))
        request = parse(argv, 0) if (parse := self._vocabulary.get(name)) is not None else None
        return self._handle(name, argv) if request is None else self._submit(request, NO_PREFIXES)

    def _handle(self, name: bytes, argv: list[bytes]) -> None:
        handler = self._handlers.get(name)
        if name in _OF_BROWSERS:
            self._queue.clear()
            self.is_closing = True
            return self.say(
                error("ERR", "this port does not speak HTTP; the connection is closed")
            )
        if handler is None:
            shown = name[:64].decode("ascii", "replace")
            return self.say(error("UNKNOWN_COMMAND", f"there is no command {shown}"))
        value = handler(self, argv)
        if value is not None:
            self.say(value)
        return None

    def _run_prefixed(self, argv: list[bytes]) -> None:
        found = prefixes_of(argv)
        if found is None:
            return self.say(error("BADARG", "CSN number, CTS ms, SEEN version, GROUP gid, FORCE"))
        prefixes, at = found
        name = argv[at].upper()
        if self.transaction is not None and name not in _BESIDE_TRANSACTION:
            refused = error("BADARG", "in a transaction only EXEC takes prefixes")
            self.transaction.spoil(refused)
            return self.say(refused)
        if self.listener.bars(name, self.protocol):
            return self.say(BARRED)
        parse = self._vocabulary.get(name)
        request = None
        if parse is not None:
            if self.is_stranger:
                return self.say(NO_LOGIN)
            request = parse(argv[at:], prefixes.stamp)
        if request is not None:
            return self._submit(forced(request) if prefixes.passes_locks else request, prefixes)
        if prefixes.gid is not None:
            self.gid = prefixes.gid
        self.prefixes = prefixes
        try:
            return self._run(argv[at:])
        finally:
            self.prefixes = NO_PREFIXES

    def submit(self, request: ClientRequest | bytes, prefixes: Prefixes = NO_PREFIXES) -> None:
        """Give a valid command to a group, or answer an invalid one."""
        is_refused = not isinstance(request, bytes) and self.is_stranger  # perhaps since it waits
        return self.say(NO_LOGIN) if is_refused else self._submit(request, prefixes)

    def _submit(self, request: ClientRequest | bytes, prefixes: Prefixes) -> None:
        """Do it for somebody who has logged in, or need not."""
        if isinstance(request, bytes):
            return self.say(request)
        # There, access lists decide; and everybody may ask who they are.
        is_of_namespace = request.key.startswith(b"/") or request.argv[0] == b"ACL"
        if self.principal is not None and not self.principal.is_admin and not is_of_namespace:
            what = f"{_shown(request.key)} {'w' if request.is_change else 'r'}"
            return self.say(error("NOPERM", what))
        gid = prefixes.gid
        if gid is None:
            gid = self.backend.group_of(request.key)
        self.gid = gid
        session = self.sessions.get(gid)
        if session is not None and session.is_moved:
            return self.say(error("SESSIONMOVED", "another connection has resumed it"))
        if session is None and (prefixes.csn is not None or request.needs_session):
            return self.open_first(gid, lambda: self.submit(request, prefixes))
        if self._flying and (
            request.is_change is not self._is_changing
            or (self._flying >= self._reads_max and not request.is_change)
        ):
            self._held, self.is_blocked = (request, prefixes), True
            return None
        self._is_changing = request.is_change
        self._flying += 1
        slot = Slot(self, gid, self.protocol)
        self._slots.append(slot)
        return self.ask(gid, request, prefixes, slot.done)

    def ask(self, gid: int, request: ClientRequest, prefixes: Prefixes, done: Done) -> None:
        """Ask a group, in the session that is used here if there is one; `done` gets its reply."""
        session = self.sessions.get(gid)
        self._is_heard = session is not None  # it says so itself
        body = Body(self._principal, self._groups, request.argv)
        if not request.is_change:
            seen = max(self._seen.get(gid, 0), prefixes.seen) if request.is_stale else None
            return self.backend.read(gid, body, done, seen, session.number if session else 0)
        if session is None:
            return self.backend.request(gid, body, done)
        csn = session.csn + 1 if prefixes.csn is None else prefixes.csn
        if csn > CSN_MAX:
            return done(_NO_NUMBERS)
        session.csn = max(session.csn, csn)
        return self.backend.request(
            gid, body, done, instance=session.instance, session=session.number, csn=csn,
            is_counted=prefixes.csn is None,
        )  # fmt: skip

    def open_first(self, gid: int, then: Callable[[], None]) -> None:
        """Open the session that the request in hand needs, then go on with it."""

        def opened(refused: bytes | None) -> None:
            if refused is None:
                then()
            else:
                self.say(refused)

        self.open_session(gid, self.chance_bytes(ID_BYTES), TIME_OUT_MS, opened)

    # ---- sessions

    def open_session(
        self, gid: int, instance: bytes, ttl_ms: int, then: Callable[[bytes | None], None]
    ) -> None:
        """Open a session and use it here; `then` is told why not, or None. Others wait."""
        secret = self.chance_bytes(SECRET_BYTES).hex().encode()
        self.is_blocked = True

        def opened(reply: Reply) -> None:
            if self.is_stranger:
                then(NO_LOGIN)
            elif reply.code is Code.OK:
                self.attach(gid, Session(instance, reply.lsn, secret, ttl_ms))
                then(None)
            else:
                then(self.refusal(gid, reply))

        body = Body(self._principal, (), (b"%d" % ttl_ms, secret))
        self.backend.request(
            gid, body, lambda reply: self.unblock(lambda: opened(reply)),
            kind=Kind.SESSION_OPEN, instance=instance,
        )  # fmt: skip

    def attach(self, gid: int, session: Session) -> None:
        """Use a session here, and no more where it was used."""
        self.detach(gid)
        other = self.attached.get((gid, session.number))
        if other is not None and other is not self:
            other.sessions[gid].is_moved = True
        self.attached[gid, session.number] = self
        self.sessions[gid] = session

    def detach(self, gid: int | None = None) -> None:
        """Use the session of this group, or none at all, no more; it goes on to exist."""
        for group in [gid] if gid is not None else list(self.sessions):
            session = self.sessions.pop(group, None)
            self.listener.forget(group)
            if session is not None and not session.is_moved:
                self.attached.pop((group, session.number), None)

    # ---- users

    @property
    def is_stranger(self) -> bool:
        """Whether login is required and the client has not logged in."""
        return self.principal is None and self.guard.asks

    def log_in(self, principal: Principal | None) -> None:
        """Set the user, or none. Sessions of another user are no longer used."""
        before, self.principal = self.principal, principal
        self._principal, self._groups = b"", _NO_GROUPS
        if principal is not None:
            self._principal = principal.name.encode()
            named = (name.encode() for name in principal.groups)
            self._groups = tuple(name for name in named if name != ADMINS)
            if principal.is_admin:
                self._groups += _OF_ADMINS
        if (before.name if before else "") != (principal.name if principal else ""):
            self.detach()
            self.transaction = None
        self.listener.subscriber.belong_to(self.asker(0), may_hear=not self.is_stranger)

    def asker(self, gid: int) -> Asker:
        """Return who asks here, in the session of a group if there is one."""
        session = self.sessions.get(gid)
        instance, number = (session.instance, session.number) if session else (b"", 0)
        return Asker(number, 0, instance, self._principal, self._groups)


def _shown(key: bytes) -> str:
    return key[:64].decode("utf-8", "backslashreplace")
