"""The executed requests of each session and their replies: exactly-once execution.

Invariants:
1. The table changes at apply only. So all members have the same table, and a view change that
   drops a request drops all traces of it.
2. A request number is executed at most once. An executed number stays known until `WINDOW_MAX`
   larger numbers follow. Older numbers are gone, and are never executed. A waiting request counts
   as neither executed nor gone.
3. A session's number is the LSN of the entry that opened it, and is never used again.

Elsewhere: requests that are logged but not committed (`normal_case`), what a request waits for
(the state machine), a session's time (the primary).

Source: Liskov and Cowling 2012, section 4.1; V2R2, "Client Session".
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from enum import Enum
from hmac import compare_digest
from struct import Struct
from typing import Final, NamedTuple

from millstream.vsr.core.effects import Code
from millstream.vsr.core.entries import ID_BYTES
from millstream.vsr.core.snapshots import Pieces

__all__ = [
    "REPLIES_BYTES_MAX",
    "REPLIES_MAX",
    "SECRET_BYTES_MAX",
    "SESSIONS_MAX",
    "TIME_OUT_MS",
    "TIME_OUT_MS_MIN",
    "WINDOW_MAX",
    "ClientTable",
    "Past",
    "Verdict",
]

REPLIES_MAX: Final = 128
"""Most replies that are kept of one session."""
REPLIES_BYTES_MAX: Final = 1024 * 1024
"""Most bytes of replies that are kept of one session. The newest is kept whatever its length."""
WINDOW_MAX: Final = 256
"""How far below the highest executed number a number may still be executed for the first time."""
SESSIONS_MAX: Final = 100_000
"""Most sessions of one group. No more are opened."""
TIME_OUT_MS: Final = 10_000
"""How long a client may be silent if neither it nor a setting asks for another time."""
TIME_OUT_MS_MIN: Final = 500
"""The shortest time-out."""
SECRET_BYTES_MAX: Final = 64
"""Longest secret with which a client proves that a session is its own. The rest is ignored."""
_DIGITS_MAX: Final = 9


_SESSION: Final = Struct(">IHQII")
_REPLY: Final = Struct(">QQI")


class Past(Enum):
    """What is known of a request number."""

    NEW = "never executed"
    WAITING = "executed, and waits for its reply"
    OFFERED = "what it waits for is there, if it comes for it"
    STORED = "executed, the reply is kept"
    GONE = "too old to be known"
    EXPIRED = "there is no such session"


class Verdict(NamedTuple):
    """The table's answer for a request. `value` and `lsn` are those of a kept reply."""

    past: Past
    value: bytes = b""
    lsn: int = 0


_NEW: Final = Verdict(Past.NEW)


class _Session:
    __slots__ = (
        "age", "executed", "highest", "instance", "replies", "reply_bytes", "secret",
        "time_out_ms",
    )  # fmt: skip

    def __init__(self, instance: bytes, time_out_ms: int, secret: bytes, age: int) -> None:
        self.instance = instance
        self.time_out_ms = time_out_ms
        self.secret = secret
        self.age = age
        self.highest = 0
        self.executed: set[int] = set()
        self.replies: OrderedDict[int, tuple[bytes, int]] = OrderedDict()
        self.reply_bytes = 0

    def judge(self, csn: int) -> Verdict:
        if kept := self.replies.get(csn):
            return Verdict(Past.STORED, *kept)
        if csn in self.executed or csn <= self.highest - WINDOW_MAX:
            return Verdict(Past.GONE)
        return _NEW

    def reach(self, csn: int) -> None:
        if csn > self.highest:
            self.highest = csn
            floor = csn - WINDOW_MAX
            if len(self.executed) > 2 * WINDOW_MAX:
                self.executed = {known for known in self.executed if known > floor}

    def store(self, csn: int, value: bytes, lsn: int) -> None:
        self.executed.add(csn)
        if csn > self.highest:
            self.reach(csn)
        replies = self.replies
        replies[csn] = (value, lsn)
        self.reply_bytes += len(value)
        while len(replies) > REPLIES_MAX or (
            self.reply_bytes > REPLIES_BYTES_MAX and len(replies) > 1
        ):
            _, (oldest, _) = replies.popitem(last=False)
            self.reply_bytes -= len(oldest)

    def copy(self, age: int) -> _Session:
        other = _Session(self.instance, self.time_out_ms, self.secret, age)
        other.highest, other.executed = self.highest, self.executed.copy()
        other.replies, other.reply_bytes = self.replies.copy(), self.reply_bytes
        return other

    def pieces(self) -> Iterator[bytes]:
        """Return the numbers in pieces, without those that are gone in any case."""
        executed = sorted(csn for csn in self.executed if csn > self.highest - WINDOW_MAX)
        yield self.instance + _SESSION.pack(
            self.time_out_ms, len(self.secret), self.highest, len(executed), len(self.replies)
        )
        yield self.secret
        yield b"".join(csn.to_bytes(8, "big") for csn in executed)
        for csn, (value, lsn) in self.replies.items():
            yield _REPLY.pack(csn, lsn, len(value)) + value

    @classmethod
    def read(cls, pieces: Pieces, age: int) -> _Session:
        instance = pieces.take(ID_BYTES)
        time_out_ms, length, highest, executed, replies = _SESSION.unpack(
            pieces.take(_SESSION.size)
        )
        found = cls(instance, time_out_ms, pieces.take(length), age)
        found.highest = highest
        found.executed = {pieces.number() for _ in range(executed)}
        for _ in range(replies):
            csn, lsn, length = _REPLY.unpack(pieces.take(_REPLY.size))
            found.replies[csn] = (pieces.take(length), lsn)
            found.reply_bytes += length
        return found


class ClientTable:
    """The sessions of a group. Session 0 means no session; its numbers are not checked."""

    def __init__(self) -> None:
        self._sessions: dict[int, _Session] = {}
        self._age = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def __contains__(self, session: int) -> bool:
        return session in self._sessions

    def __iter__(self) -> Iterator[int]:
        """Yield the sessions in the order of their beginning."""
        return iter(self._sessions)

    def open(
        self, session: int, instance: bytes, time_out_ms: bytes = b"", secret: bytes = b""
    ) -> bool:
        """Open a session named after the entry's LSN. False if there are too many.

        `time_out_ms`: decimal digits. Anything else, and a number that is too large, means the
        maximum.
        """
        if len(self._sessions) >= SESSIONS_MAX:
            return False
        is_number = time_out_ms.isdigit() and len(time_out_ms) <= _DIGITS_MAX
        asked = int(time_out_ms) if is_number else TIME_OUT_MS
        bounded = min(max(asked, TIME_OUT_MS_MIN), TIME_OUT_MS)
        self._sessions[session] = _Session(instance, bounded, secret[:SECRET_BYTES_MAX], self._age)
        return True

    def close(self, session: int, instance: bytes) -> bool:
        """Close the session if it belongs to the caller. Its later requests are refused."""
        known = self._sessions.get(session)
        if known is None or known.instance != instance:
            return False
        del self._sessions[session]
        return True

    def expire(self, sessions: Iterable[int]) -> None:
        """End these sessions, whichever principal they have."""
        for session in sessions:
            self._sessions.pop(session, None)

    def time_out_ms(self, session: int) -> int:
        """Return the session's time-out. The session must exist."""
        return self._sessions[session].time_out_ms

    def about(self, session: int) -> tuple[bytes, int, int]:
        """Return the session's instance, time-out and highest number. The session must exist."""
        known = self._sessions[session]
        return known.instance, known.time_out_ms, known.highest

    def know(self, instance: bytes, session: int, secret: bytes) -> tuple[Code, int]:
        """Return what a client that resumes its session is told: its highest number."""
        known = self._sessions.get(session)
        if known is None or known.instance != instance:
            return Code.SESSIONEXPIRED, 0
        if not compare_digest(known.secret, secret[:SECRET_BYTES_MAX]):
            return Code.NOPERM, 0
        return Code.OK, known.highest

    def judge(self, instance: bytes, session: int, csn: int) -> Verdict:
        """Return whether a request may be executed, and the reply if it was."""
        if session == 0:
            return _NEW
        known = self._sessions.get(session)
        if known is None or known.instance != instance:
            return Verdict(Past.EXPIRED)
        return _NEW if csn > known.highest else known.judge(csn)

    def store(self, session: int, csn: int, value: bytes, lsn: int) -> None:
        """Keep the reply of a request that has just been executed for the first time."""
        if session:
            known = self._sessions[session]
            (known if known.age == self._age else self._own(session)).store(csn, value, lsn)

    def wait(self, session: int, csn: int) -> None:
        """Note a request that was executed and has no reply yet because it waits."""
        self._own(session).reach(csn)

    def _own(self, session: int) -> _Session:
        known = self._sessions[session]
        if known.age != self._age:
            known = self._sessions[session] = known.copy(self._age)
        return known

    def freeze(self) -> Iterator[bytes]:
        """Return the table as of this moment, in small pieces, while it goes on changing.

        A session that changes later is copied, once. Sessions are in order, since their numbers
        only grow.
        """
        self._age += 1
        return _pieces(list(self._sessions.items()))

    def restore(self, pieces: Pieces) -> Iterator[None]:
        """Replace the table by what `freeze` wrote, one session with each step."""
        self._sessions = {}
        for _ in range(pieces.number()):
            session = pieces.number()
            self._sessions[session] = _Session.read(pieces, self._age)
            yield


def _pieces(sessions: list[tuple[int, _Session]]) -> Iterator[bytes]:
    yield len(sessions).to_bytes(8, "big")
    sessions.reverse()
    while sessions:
        number, session = sessions.pop()  # each goes when it is done: all at once would take long
        yield number.to_bytes(8, "big")
        yield from session.pieces()
