"""The logic of a client of a group: finds the primary, repeats, and reports outcomes.

Invariants:
1. A change is repeated with its first number, within its first session. A number is never given to
   two changes. So a change is made once, however often it was sent.
2. A call ends with its reply, or at its deadline. It is reported as failed only if every attempt
   was refused or none was sent; otherwise its outcome is unknown.
3. The loss of a session is reported once. Requests that were sent in it and not answered have an
   unknown outcome.
4. At most `CALLS_MAX` calls wait, `FLIGHT_MAX` of them on the connection: fewer than the replies
   that a group stores for a session.
5. A node has `ATTEMPT_MS` for each sign of progress: a reply or a part of one, or accepting more
   of a long request. So large values can also use a slow line.
6. A waiting request (its reply was PENDING) is repeated with its number: at once after a notice,
   else after at most `AGAIN_MAX_MS`. It ends with its session.
7. The time since the primary heard the session is counted from when a request was sent, never from
   the time of a reply.
8. No clock, no randomness: both are arguments.

Elsewhere: sockets and the API (`aio.client`); the other end (`resp.session`).

Source: V2R2, "Client"; Liskov and Cowling 2012, section 4.1.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from heapq import heappop, heappush
from typing import Any, Final

from millstream.coordination.core.client.events import (
    Call,
    Connect,
    Connected,
    Disconnect,
    Effect,
    ErrorReply,
    Event,
    Finish,
    Lost,
    Moving,
    Noticed,
    Outcome,
    Received,
    SessionLost,
    Tick,
    Transmit,
    Wake,
)
from millstream.coordination.core.client.replies import is_pending, members_of
from millstream.vsr.core.client_table import REPLIES_MAX

__all__ = [
    "AGAIN_MAX_MS",
    "AGAIN_MIN_MS",
    "ATTEMPT_MS",
    "BACK_OFF_LONG_MS",
    "BACK_OFF_MAX_MS",
    "BACK_OFF_MIN_MS",
    "CALLS_MAX",
    "FLIGHT_MAX",
    "LONG_MS",
    "MAP_MS",
    "NODES_MAX",
    "SOON_MS",
    "Caller",
]

CALLS_MAX: Final = 10_000
"""Calls of one client that wait for their replies."""
FLIGHT_MAX: Final = 100
"""Most requests sent and not answered."""
ATTEMPT_MS: Final = 1000.0
"""How long one node may be silent, or take to connect, before another node is asked."""
BACK_OFF_MIN_MS: Final = 10.0
"""Pause before a second attempt. It doubles before each further one."""
BACK_OFF_MAX_MS: Final = 100.0
"""No pause between attempts is longer, at first."""
BACK_OFF_LONG_MS: Final = 1000.0
"""No pause is longer once nothing was answered for `LONG_MS`."""
LONG_MS: Final = 30_000.0
"""When attempts become rarer."""
AGAIN_MIN_MS: Final = 20.0
"""Pause before a waiting request is repeated. It doubles each time."""
AGAIN_MAX_MS: Final = 500.0
"""What waits is asked for no more rarely; an offer of it is kept for far longer."""
SOON_MS: Final = 100.0
"""After what may have changed the session's time-out it is asked for; none is that short."""
MAP_MS: Final = 2000.0
"""How often a client asks where the members are, so that it knows the next primary."""
NODES_MAX: Final = 64
"""Addresses that a client keeps; what it learns beyond that it forgets."""
_HINTS_MAX: Final = 2
_OTHER_NODE: Final = frozenset(("NOTPRIMARY", "NOQUORUM", "UNKNOWN", "SESSIONMOVED"))
_IN_DOUBT: Final = frozenset(("UNKNOWN", "SESSIONMOVED"))
_NAMING: Final = frozenset((b"CREATENAMESPACE", b"DELETENAMESPACE", b"VDS"))
_LATER: Final = frozenset(("BUSY", "BEHIND"))
assert FLIGHT_MAX < REPLIES_MAX


class _Pending:
    """A call that is not over, or whose place among the replies is still taken."""

    __slots__ = (
        "again_at_ms",
        "argv",
        "before",
        "csn",
        "deadline_ms",
        "doubts",
        "is_change",
        "is_over",
        "looks",
        "may_wait",
        "reason",
        "ticket",
    )

    def __init__(self, call: Call) -> None:
        self.ticket, self.argv, self.is_change, self.deadline_ms = call[:4]
        self.may_wait, self.before = call.may_wait, call.before
        self.csn = self.doubts = self.looks = 0
        self.again_at_ms = 0.0
        self.is_over = False
        self.reason: Any = None


class _Step(Enum):
    """What the caller itself sends."""

    HELLO = 1
    VDS = 2
    OPEN = 3
    RESUME = 4
    PING = 5
    BEFORE = 6
    INFO = 7


_OF_SESSION: Final = (_Step.OPEN, _Step.RESUME, _Step.PING)
_HOLDING: Final = frozenset(
    (b"LOCK", b"SEMAPHORE", b"BARRIER", b"ELECT", b"QUEUE", b"CREATE", b"EXEC")
)
"""Commands after which a session may hold what has a shorter time-out."""


class _Link(Enum):
    NONE = 0
    PAUSING = 1
    CONNECTING = 2
    GREETING = 3
    READY = 4


def _name_in(argv: Sequence[bytes]) -> bytes:
    """Return the name of a command that may have a number and FORCE before it."""
    words = argv[2:] if argv[0] == b"CSN" else argv
    return words[1] if words[0] == b"FORCE" and len(words) > 1 else words[0]


class Caller:
    """One client with one session. `step` is all there is to call.

    Args:
        addresses: of some nodes, `host:port`.
        chance: returns numbers from 0 to below 1.
        hello: the command that begins a connection, with the log-in.
        time_out_ms: of the session.
        group: that it talks with; None: each node's first, and whichever has a path.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        chance: Callable[[], float],
        *,
        hello: tuple[bytes, ...] = (b"HELLO", b"3"),
        time_out_ms: int = 10_000,
        group: int | None = None,
    ) -> None:
        assert addresses
        self._given = list(addresses)
        self._addresses = list(addresses)
        self._chance, self._hello = chance, hello
        self._wanted_ms = time_out_ms
        self._prefix = () if group is None else (b"GROUP", b"%d" % group)
        self.time_out_ms = time_out_ms
        """How long the session may be silent, as the group has it."""
        self._effects: list[Effect] = []
        self._now = 0.0
        self._link = _Link.NONE
        self._since_ms = self._until_ms = self._map_ms = 0.0
        self._wake_ms = float("inf")
        self._at = 0
        self._flight: deque[_Pending | _Step] = deque()
        self._pending: deque[_Pending] = deque()
        self._waiting: list[_Pending] = []
        self._beats: deque[float] = deque()
        """When what shows the primary that the client lives was sent, and is not answered."""
        self._beaten_ms = 0.0
        self._soon_ms = float("inf")
        """When to beat early, to be told the time-out."""
        self.heard_ms: float | None = None
        """The primary has heard the session at this time or later; None without a session."""
        self._deadlines: list[tuple[float, int, _Pending]] = []
        self._open = 0
        self._csn = 0
        self.client_id: bytes | None = None
        """The session, if there is one."""
        self._secret = b""
        self._refusal: ErrorReply | None = None
        self._failures = self._hints = 0
        self._failing_since: float | None = None

    def step(self, now_ms: float, event: Event) -> list[Effect]:
        """Take one event and return what to do, in order."""
        self._now = now_ms
        match event:
            case Call():
                self._take(event)
            case Received(reply):
                self._receive(reply)
            case Connected():
                self._greet()
            case Noticed():
                self._ask_again(self._waiting)
            case Moving():
                self._since_ms = now_ms
            case Lost():
                self._leave(None, is_told=False)
            case Tick():
                self._wake_ms = float("inf")
        self._pass_time()
        self._pump()
        self._set_wake()
        effects, self._effects = self._effects, []
        return effects

    # ---- calls

    def _take(self, call: Call) -> None:
        if self._open >= CALLS_MAX:
            busy = ErrorReply("BUSY too many calls of this client wait")
            return self._effects.append(Finish(call.ticket, Outcome.FAILED, busy))
        pending = _Pending(call)
        self._open += 1
        self._pending.append(pending)
        if len(self._deadlines) > 2 * CALLS_MAX:
            self._deadlines = sorted(item for item in self._deadlines if not item[2].is_over)
        heappush(self._deadlines, (call.deadline_ms, call.ticket, pending))
        return None

    def _finish(self, call: _Pending, outcome: Outcome, reply: Any) -> None:
        if not call.is_over:
            call.is_over = True
            self._open -= 1
            self._effects.append(Finish(call.ticket, outcome, reply))

    def _wait(self, call: _Pending) -> None:
        pause = min(AGAIN_MIN_MS * 2.0 ** min(call.looks, 16), AGAIN_MAX_MS)
        call.looks += 1
        call.doubts += 1  # it may be granted whatever comes
        call.again_at_ms = self._now + pause * (0.5 + 0.5 * self._chance())
        self._waiting.append(call)

    def _ask_again(self, calls: Sequence[_Pending]) -> None:
        due = set(calls)
        self._waiting = [call for call in self._waiting if call not in due and not call.is_over]
        self._pending.extend(call for call in calls if not call.is_over)

    def _give_up(self, call: _Pending, reply: Any) -> None:
        outcome = Outcome.UNKNOWN if call.is_change and call.doubts else Outcome.FAILED
        self._finish(call, outcome, reply if reply is not None else self._refusal)

    def _pump(self) -> None:
        """Send what may be sent; connect if there is anything to do."""
        while self._pending and self._pending[0].is_over:
            self._pending.popleft()
        if self._link is _Link.NONE and (self._pending or self._waiting or self.client_id):
            self._connect()
        if self._link is not _Link.READY or self._until_ms > self._now:
            return
        while self._pending and len(self._flight) < FLIGHT_MAX:
            call = self._pending.popleft()
            if call.is_over:
                continue
            if call.is_change and not call.csn:
                self._csn += 1
                call.csn = self._csn
            for words in call.before:
                self._transmit(_Step.BEFORE, words)
            numbered = (b"CSN", b"%d" % call.csn) if call.csn else ()
            self._transmit(call, (*numbered, *call.argv))

    def _transmit(self, item: _Pending | _Step, argv: tuple[bytes, ...]) -> None:
        if not self._flight:
            self._since_ms = self._now
        self._flight.append(item)
        is_for_group = not isinstance(item, _Step) or item in (*_OF_SESSION, _Step.INFO)
        if is_for_group and _name_in(argv) not in _NAMING:
            argv = (*self._prefix, *argv)
        self._effects.append(Transmit(argv))
        if item in _OF_SESSION:
            self._beats.append(self._now)
            self._beaten_ms = self._now

    # ---- the connection

    def _connect(self) -> None:
        self._link = _Link.CONNECTING
        self._since_ms = self._now
        self._effects.append(Connect(self._addresses[self._at % len(self._addresses)]))

    def _greet(self) -> None:
        self._link = _Link.GREETING
        self._transmit(_Step.HELLO, self._hello)
        self._ask_map()
        if self.client_id:
            self._transmit(_Step.RESUME, (b"SESSION", b"RESUME", self.client_id, self._secret))
        else:
            self._open_session()

    def _ask_map(self) -> None:
        self._map_ms = self._now + MAP_MS
        self._transmit(_Step.VDS, (b"VDS",))

    def _open_session(self) -> None:
        self._transmit(_Step.OPEN, (b"SESSION", b"OPEN", b"TTL", b"%d" % self._wanted_ms))

    def _leave(self, hint: str | None, *, is_told: bool = True) -> None:
        """Try another node, the one that was named if any, after a pause."""
        if is_told:
            self._effects.append(Disconnect())
        sent = [item for item in self._flight if isinstance(item, _Pending)]
        for call in sent:
            call.doubts += call.is_change
        self._flight.clear()
        self._beats.clear()
        self._pending.extendleft(call for call in reversed(sent) if not call.is_over)
        self._failed()
        self._link = _Link.PAUSING
        if hint is not None and self._hints < _HINTS_MAX:
            self._hints += 1
            self._learn([hint])
            if hint not in self._addresses:
                self._addresses[-1] = hint
            self._at = self._addresses.index(hint)
            self._until_ms = self._now
        else:
            self._at += 1
            self._until_ms = self._now + self._pause_ms()

    def _failed(self) -> None:
        self._failures += 1
        if self._failing_since is None:
            self._failing_since = self._now

    def _pause_ms(self) -> float:
        since = self._now if self._failing_since is None else self._failing_since
        most = BACK_OFF_LONG_MS if self._now - since >= LONG_MS else BACK_OFF_MAX_MS
        pause = min(BACK_OFF_MIN_MS * 2.0 ** min(self._failures - 1, 16), most)
        return pause * (0.5 + 0.5 * self._chance())

    def _learn(self, addresses: Sequence[str]) -> None:
        known = list(dict.fromkeys([*self._given, *addresses, *self._addresses]))
        here = self._addresses[self._at % len(self._addresses)]
        self._addresses = known[:NODES_MAX]
        self._at = self._addresses.index(here) if here in self._addresses else 0

    # ---- replies

    def _receive(self, reply: Any) -> None:
        item = self._flight.popleft()
        self._since_ms = self._now
        if isinstance(item, _Pending):
            self._answered(item, reply)
        elif item is _Step.HELLO:
            if isinstance(reply, ErrorReply):
                self._not_greeted(reply)
        elif item is _Step.BEFORE:
            pass
        elif item is _Step.INFO:
            self._take_time_out(reply)
        elif item is _Step.VDS:
            self._learn(members_of(reply))
        elif isinstance(reply, ErrorReply):
            self._beats.popleft()
            self._session_refused(item, reply)
        else:
            sent_ms = self._beats.popleft()
            if item is _Step.PING:  # it has found out what INFO shows
                self._transmit(_Step.INFO, (b"SESSION", b"INFO"))
            else:
                self._begin(item, reply)
            if self.client_id is not None:
                self.heard_ms = sent_ms

    def _not_greeted(self, reply: ErrorReply) -> None:
        """Another node may take what a busy one does not."""
        if reply.code in _LATER or reply.code in _OTHER_NODE:
            self._refusal = reply
            self._leave(None)
        else:
            self._refused(reply)

    def _refused(self, reply: ErrorReply) -> None:
        """The node does not let this client in: no other attempt will help."""
        for call in self._pending:
            self._give_up(call, reply)
        self._leave(None)

    def _begin(self, item: _Step, reply: Any) -> None:
        wanted = {b"csn", b"client_id"} | ({b"secret"} if item is _Step.OPEN else set())
        if not isinstance(reply, dict) or not wanted <= reply.keys():
            return self._refused(ErrorReply("ERR this is no node of a coordination group"))
        if item is _Step.OPEN:
            self.client_id, self._secret = reply[b"client_id"], reply[b"secret"]
            self._csn = 0
        self.time_out_ms = self._wanted_ms
        self._take_time_out(reply)
        self._soon_ms = self._now + SOON_MS
        self._ask_again(self._waiting)
        self._csn = max(self._csn, reply[b"csn"])
        self._link = _Link.READY
        self._until_ms = self._now
        return None

    def _take_time_out(self, reply: Any) -> None:
        """What a session holds, and what is set for that, may change it at any time."""
        ttl = reply.get(b"ttl") if isinstance(reply, dict) else None
        if isinstance(ttl, int):
            self.time_out_ms = ttl

    def _session_refused(self, item: _Step, reply: ErrorReply) -> None:
        if reply.code in _OTHER_NODE or reply.code in _LATER:
            self._refusal = reply
            return self._leave(_hint(reply))
        if item is _Step.OPEN or reply.code == "NOAUTH":
            return self._refused(reply)
        self._lose_session()
        return self._leave(None)

    def _lose_session(self) -> None:
        """What was sent in it cannot be repeated in another one."""
        if self.client_id is None:
            return
        self.client_id = self.heard_ms = None
        self._effects.append(SessionLost())
        gone = ErrorReply("SESSIONEXPIRED the session has ended, and all that it waited for")
        for call in [*self._flight, *self._pending, *self._waiting]:
            if isinstance(call, _Pending) and call.csn:
                call.reason = gone if call.may_wait else call.reason
                call.doubts += call in self._flight
                if call.doubts:
                    self._give_up(call, call.reason)
                call.csn = 0
        self._waiting.clear()

    def _answered(self, call: _Pending, reply: Any) -> None:
        code = reply.code if isinstance(reply, ErrorReply) else ""
        if code in _OTHER_NODE or code in _LATER:
            call.reason = reply
            call.doubts += code in _IN_DOUBT and call.is_change
            if code in _OTHER_NODE:
                self._leave(_hint(reply))
            else:
                self._failed()
                self._until_ms = self._now + self._pause_ms()
            self._pending.appendleft(call)
            return None
        if code == "SESSIONEXPIRED" or (code == "CSNGONE" and call.is_change):
            self._finish(call, Outcome.UNKNOWN, reply)
            if code == "SESSIONEXPIRED":
                self._lose_session()
                self._leave(None)
            return None
        self._failures, self._hints, self._failing_since, self._refusal = 0, 0, None, None
        if call.may_wait and is_pending(reply):
            return self._wait(call)
        if call.csn and call.argv[0].upper() in _HOLDING:
            self._soon_ms = min(self._soon_ms, self._now + SOON_MS)
        self._finish(call, Outcome.ANSWERED, reply)
        return None

    # ---- time

    def _pass_time(self) -> None:
        while self._deadlines and (
            self._deadlines[0][0] <= self._now or self._deadlines[0][2].is_over
        ):
            _, _, call = heappop(self._deadlines)
            if not call.is_over:
                call.doubts += call.is_change and call in self._flight
                self._give_up(call, call.reason)
        self._ask_again([call for call in self._waiting if call.again_at_ms <= self._now])
        if self._link is _Link.PAUSING and self._until_ms <= self._now:
            self._link = _Link.NONE
        is_owed = self._flight or self._link is _Link.CONNECTING
        if is_owed and self._now >= self._since_ms + ATTEMPT_MS:
            self._leave(None)
        if self._link is _Link.READY:
            if self._now >= self._beat_ms:  # also while a long reply is under way
                self._soon_ms = float("inf")
                self._transmit(_Step.PING, (b"SESSION", b"PING"))
            if self._now >= self._map_ms:
                self._ask_map()

    @property
    def _beat_ms(self) -> float:
        return min(self._beaten_ms + self.time_out_ms / 3, self._soon_ms)

    def _set_wake(self) -> None:
        times = [self._deadlines[0][0]] if self._deadlines else []
        if self._flight or self._link is _Link.CONNECTING:
            times.append(self._since_ms + ATTEMPT_MS)
        if self._link is _Link.READY:
            times += [self._beat_ms, self._map_ms]
            times += [call.again_at_ms for call in self._waiting]
        if self._link is _Link.PAUSING or (self._pending and self._until_ms > self._now):
            times.append(self._until_ms)
        at_ms = min(times, default=float("inf"))
        if at_ms < self._wake_ms:
            self._wake_ms = at_ms
            self._effects.append(Wake(at_ms))


def _hint(reply: ErrorReply) -> str | None:
    """Return where the primary is, if the reply says so: group, view, address."""
    words = reply.words.split()
    return words[2] if reply.code == "NOTPRIMARY" and len(words) == 3 and ":" in words[2] else None
