"""Connections that say anything at all: bytes in, replies out.

Invariants, looked at in every run:
1. No bytes end the node: nothing is raised.
2. All that is sent are whole replies as stock clients read them, one for each request, in order.
3. After bytes that are no request there is one error, as the last reply, and the connection ends;
   nothing behind them is done.
4. What a connection keeps is bounded: what has come of one request, requests of one turn, replies.

Elsewhere: whole requests that are divided anywhere (test_resp), bounds that are reached
(test_front).
"""

from __future__ import annotations

from contextlib import suppress
from itertools import count

from millstream.coordination.core.backend import Principal
from millstream.coordination.core.client.wire import Replies, is_push
from millstream.coordination.core.group_state import GROUP_COMMANDS, GroupState
from millstream.coordination.core.resp.protocol import RequestCutter
from millstream.coordination.core.resp.session import OUT_BYTES_MAX, RespSession
from millstream.errors import RemoteProtocolError
from millstream.vsr.core.effects import Code
from simulators.coordination_fuzz.choices import Choices
from simulators.coordination_fuzz.commands import FORMS, Inventor
from support.coordination.coordination_backend import FakeGuard, FrontClient, RegisterBackend

__all__ = ["fronts"]

STEPS_MAX = 300
KEPT_BYTES_MAX = 4 * OUT_BYTES_MAX
_PLAIN = [
    line.split()
    for line in """\
HELLO 2
HELLO 3
HELLO 3 [AUTH VALUE VALUE] [SETNAME VALUE]
AUTH user VALUE
AUTH TOKEN VALUE
PING VALUE?
QUIT
RESET
SELECT NUMBER
CLIENT SETNAME VALUE
CLIENT INFO
CLIENT SETINFO VALUE VALUE
COMMAND DOCS
CONFIG GET VALUE
INFO VALUE?
MULTI
EXEC
DISCARD
MULTI
EXEC
SESSION OPEN [INSTANCE SEEN] [TTL NUMBER]
SESSION RESUME SEEN SEEN
SESSION PING
SESSION INFO
SESSION CLOSE
SESSION LIST
NOTIFY NEXT
SUBSCRIBE PATH PATH* [MODE DATA] [TREE] [FROM VERSION]
SUBSCRIBE PATH [CHILDREN] [DURABLE VALUE]
UNSUBSCRIBE PATH?
VDS
ADMIN USER SET VALUE [PASSWORD VALUE] [ROLES VALUE] [GROUPS VALUE]
ADMIN USER DEL VALUE
ADMIN USER LIST
ADMIN STATUS VALUE?
POST /
""".splitlines()
]
_LISTENING = (b"SUBSCRIBE", b"UNSUBSCRIBE")
_PIECES = (
    b"\r\n", b"\n", b"*", b"$", b"*1\r\n", b"*2\r\n$3\r\nGET\r\n", b"$-1\r\n", b"*-1\r\n",
    b"*0\r\n", b"*1025\r\n", b"$99999999999\r\n", b'"', b"'", b'"\\x4', b"\x00", b"\xff" * 40,
    b"*1\r\n$4\r\nPING\r\n", b"PING\r\n", b"*3\r\n", b"$4194305\r\n", b"*00001\r\n", b"-0\r\n",
    b"+OK\r\n",
)  # fmt: skip


class _Connection:
    """What was sent on one, and what came back."""

    def __init__(self, world: _World) -> None:
        self.client = FrontClient(
            world.backend, world.guard, attached=world.attached, vocabulary=GROUP_COMMANDS
        )
        self.world, self.sent, self.unsent = world, RequestCutter(), b""
        self.requests = self.replies = 0
        self.is_wrong = self.listens = False
        self.due: dict[bytes, int] = {}
        """Which reply each mark is, from 1."""
        self.reader = Replies()

    def send(self, data: bytes) -> None:
        """Let it arrive, behind what has not."""
        self.unsent += data
        choices = self.world.choices
        size = len(self.unsent) if choices.number(3) else choices.number(len(self.unsent))
        arrived, self.unsent = self.unsent[:size], self.unsent[size:]
        if self.client.resp.is_closing:
            return
        self.client.resp.feed(arrived)
        self._count(arrived)

    def _count(self, arrived: bytes) -> None:
        self.sent.feed(arrived)
        with suppress(RemoteProtocolError):
            while found := self.sent.cut(1 << 20):
                for words in found:
                    self.requests += 1
                    self.due[words[-1]] = self.requests
                    self.listens |= any(word.upper() in _LISTENING for word in words[:9])
            while self.sent.cut(1) or self.sent.empty:
                pass
            return
        self.is_wrong = True

    def look(self) -> None:
        """Go on with what came, and read what was answered."""
        resp = self.client.resp
        while resp.advance():
            self.read()
        self.read()
        assert resp.waiting_bytes < KEPT_BYTES_MAX

    def read(self) -> None:
        resp = self.client.resp
        if not resp.has_output:
            return
        for reply in self.reader.feed(resp.take_output()):
            self._take(reply)
        assert not self.reader.has_part, "half a reply was sent"

    def _take(self, reply: object) -> None:
        if is_push(reply):
            return
        self.replies += 1
        if isinstance(reply, bytes) and reply.startswith(b"MARK-"):
            assert self.listens or self.due[reply] == self.replies, "replies are out of order"
        elif isinstance(reply, bytes):
            self.world.inventor.remember(reply)
        elif isinstance(reply, list | dict):
            for word in reply.values() if isinstance(reply, dict) else reply:
                if isinstance(word, bytes):
                    self.world.inventor.remember(word)

    def settled(self) -> None:
        """Nothing is held any more: everything is answered."""
        resp = self.client.resp
        self.look()
        if self.listens:
            return
        if resp.is_closing:
            assert resp.is_done
            assert self.replies <= self.requests + 1
        else:
            assert not self.is_wrong, "what is no request ends the connection"
            assert self.replies == self.requests


class _World:
    def __init__(self, data: bytes) -> None:
        self.choices = Choices(data)
        self.inventor = Inventor(self.choices, FORMS)
        self.plain = Inventor(self.choices, _PLAIN)
        self.backend = RegisterBackend(GroupState())
        users = {"user": ("a", True), "a": ("b", False)} if self.choices.one_in(4) else None
        self.guard = FakeGuard(users, {b"7": Principal("b", False, ("g",))} if users else None)
        self.attached: dict[tuple[int, int], RespSession] = {}
        self.numbers = count()
        self.is_rude = self.choices.one_in(2)
        """What is no request is sent, too."""
        self.connections = [_Connection(self), _Connection(self)]

    def run(self) -> None:
        first = self.connections[0]
        first.send(
            b"CREATENAMESPACE /n\r\nCREATE BINARY PARENTS /n/a/b\r\nCREATE QUEUE /n/q x\r\n"
        )
        for _ in range(STEPS_MAX):
            if self.choices.is_over:
                break
            self.step(self.choices.number(1))
        self.let_go()
        for connection in self.connections:
            connection.settled()

    def step(self, which: int) -> None:
        choices, connection = self.choices, self.connections[which]
        if connection.client.resp.is_closing and choices.one_in(3):
            connection.client.resp.close()
            self.connections[which] = connection = _Connection(self)
        what = choices.number(23) if self.is_rude else 2 + choices.number(21)
        if what == 0:
            connection.send(choices.text(choices.number(40)))
        elif what == 1:
            connection.send(b"".join(choices.pick(_PIECES) for _ in range(choices.number(3))))
        elif what in (2, 3):
            connection.send(b"ECHO MARK-%d\r\n" % next(self.numbers))
        elif what == 4:
            self.backend.holds = self.guard.holds = choices.one_in(2)
        elif what == 5:
            self.release()
        elif what == 6:
            self.backend.code = choices.pick((*[Code.OK] * 3, Code.UNKNOWN, *Code))
        elif what == 7:
            self.backend.leads = bool(choices.number(3))
        elif what == 8:
            self.backend.tick(20_000.0 * next(self.numbers))
        elif what == 9:
            connection.look()
        else:
            inventor = self.plain if what < 15 else self.inventor
            connection.send(self.written(inventor.command()))
        connection.look()

    def written(self, words: list[bytes]) -> bytes:
        """Return a request as clients write it, or as people do."""
        if self.choices.one_in(5):
            words = [*self.prefix(), *words]
        if self.choices.one_in(4):
            return b" ".join(words) + b"\r\n"
        parts = [b"$%d\r\n%b\r\n" % (len(word), word) for word in words]
        return b"*%d\r\n%b" % (len(words), b"".join(parts))

    def prefix(self) -> list[bytes]:
        name = self.choices.pick((b"CSN", b"CTS", b"SEEN", b"GROUP", b"csn", b"FORCE"))
        if name == b"FORCE":
            return [name]
        return [name, self.inventor.word("VERSION" if name == b"SEEN" else "NUMBER")]

    def release(self) -> None:
        """Answer one of the requests that wait."""
        for held in (self.guard.held, self.backend.held):
            if held:
                held.pop(self.choices.number(len(held) - 1))()

    def let_go(self) -> None:
        """Answer everything, whatever it leads to."""
        self.backend.holds = self.guard.holds = False
        for _ in range(100_000):
            for connection in self.connections:
                connection.send(b"")
                connection.look()
            if not self.guard.held and not self.backend.held:
                return
            self.release()
        raise AssertionError("there is no end of it")


def fronts(data: bytes) -> None:
    """Have two connections say what the bytes say."""
    _World(data).run()
