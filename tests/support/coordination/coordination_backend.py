"""A node as its clients' connections see it, with registers that one process keeps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from millstream.coordination.core.backend import (
    NO_ASKER,
    Done,
    Principal,
    UserChange,
    ValueDone,
    Where,
)
from millstream.coordination.core.group_state import GroupState
from millstream.coordination.core.namespace.admission import Parser
from millstream.coordination.core.namespace.audience import Subscriber
from millstream.coordination.core.namespace.commands.subscriptions import SubscribeRequest
from millstream.coordination.core.namespace.paths import Path
from millstream.coordination.core.namespace.state.run import Asker
from millstream.coordination.core.registers import REGISTER_COMMANDS
from millstream.coordination.core.resp.common_commands import CONNECTION_COMMANDS
from millstream.coordination.core.resp.session import RespSession
from millstream.vsr.core.effects import Code, Reply
from millstream.vsr.core.entries import GENESIS, NOBODY, Body, Kind, chain
from millstream.vsr.core.state_machine import StateMachine
from millstream.vsr.core.values import array, error, integer, mapping
from support.coordination.coordination_logs import GROUP


class RegisterBackend:
    """Answers at once; while `holds`, only what `release` is called for.

    `code`: the answer to all, which are not done; UNKNOWN: they are, all the same. Unless it
    `leads`, only what is content with the state here is done.
    """

    def __init__(self, machine: StateMachine | None = None) -> None:
        self.machine = machine or GroupState()
        self.link = GENESIS
        self.holds = False
        self.code = Code.OK
        self.leads = True
        self.address = "127.0.0.1:7379"
        self.held: list[Callable[[], None]] = []
        self.asked: list[tuple[object, ...]] = []
        self.executed: list[Body] = []
        self.touched: list[tuple[int, int]] = []
        self.sessions: dict[int, tuple[bytes, bytes, bytes]] = {}
        self.replies: dict[tuple[int, int], Reply] = {}

    def group_of(self, key: bytes) -> int:
        return 0

    def request(
        self, gid: int, body: Body, done: Done, kind: Kind = Kind.REQUEST,
        instance: bytes = NOBODY, session: int = 0, csn: int = 0, *, is_counted: bool = False,
    ) -> None:  # fmt: skip
        self.asked.append((gid, kind, body, session, csn))
        if not self.leads:
            return done(Reply(0, Code.NOTPRIMARY))
        return self._answer(
            done, lambda: self._execute(body, kind, instance, session, csn, is_counted=is_counted)
        )

    def read(
        self, gid: int, body: Body, done: Done, seen: int | None = None, session: int = 0
    ) -> None:
        self.asked.append((gid, "read", body, seen, session))
        if not self.leads and seen is None:
            return done(Reply(0, Code.NOTPRIMARY))
        return self._answer(
            done, lambda: Reply(0, Code.OK, self.machine.read(body, session), self.link.lsn)
        )

    def resume(self, gid: int, instance: bytes, session: int, secret: bytes, done: Done) -> None:
        self.asked.append((gid, "resume", instance, session, secret))
        self._answer(done, lambda: self._know(instance, session, secret))

    def subscribe(
        self,
        gid: int,
        subscriber: Subscriber,
        request: SubscribeRequest,
        confirm: Callable[[Path], None],
    ) -> Reply:
        assert isinstance(self.machine, GroupState)
        return self.machine.subscribe(subscriber, request, self.link.lsn, confirm)

    def tick(self, now_ms: float) -> None:
        if isinstance(self.machine, GroupState):
            self.machine.audience.tick(now_ms, self.link.lsn)

    def touch(self, gid: int, session: int) -> None:
        self.touched.append((gid, session))

    def list_sessions(self, gid: int, after: int, done: Done) -> None:
        known = [number for number in self.sessions if number > after]
        self._answer(done, lambda: Reply(0, Code.OK, array([integer(one) for one in known])))

    def _answer(self, done: Done, find: Callable[[], Reply]) -> None:
        def answer() -> None:
            found = find() if self.code in (Code.OK, Code.UNKNOWN) else None
            refused = Reply(0, self.code, lsn=self.link.lsn)
            done(found if found is not None and self.code is Code.OK else refused)

        if self.holds:
            self.held.append(answer)
        else:
            answer()

    def release(self, number: int) -> None:
        """Answer the one that was asked as number so among those held, from 0."""
        self.held.pop(number)()

    def _execute(
        self, body: Body, kind: Kind, instance: bytes, session: int, csn: int, *, is_counted: bool
    ) -> Reply:
        if session and session not in self.sessions:
            return Reply(0, Code.SESSIONEXPIRED)
        if csn and (known := self.replies.get((session, csn))):
            return Reply(0, Code.SESSIONMOVED) if is_counted else known
        entry = chain(
            self.link, group_id=GROUP, epoch=0, view=1, kind=kind, ts_ms=0, body=body,
            instance=instance, session=session, csn=csn,
        )  # fmt: skip
        self.link = entry.header.link
        value = b""
        if kind is Kind.SESSION_OPEN:
            ttl, secret = body.argv
            self.sessions[entry.lsn] = (instance, ttl, secret)
        elif kind is Kind.SESSION_CLOSE:
            del self.sessions[session]
        else:
            self.executed.append(body)
            value = self.machine.apply(entry)
        reply = Reply(0, Code.OK, value, entry.lsn)
        if csn:
            self.replies[session, csn] = reply
        return reply

    def _know(self, instance: bytes, number: int, secret: bytes) -> Reply:
        session = self.sessions.get(number)
        if session is None or session[0] != instance:
            return Reply(0, Code.SESSIONEXPIRED)
        if session[2] != secret:
            return Reply(0, Code.NOPERM)
        csns = [csn for owner, csn in self.replies if owner == number]
        return Reply(0, Code.OK, b"%b %d" % (session[1], max(csns, default=0)), self.link.lsn)

    told: int | None = None

    def told_lsn(self, gid: int) -> int | None:
        return self.told

    def where(self, gid: int) -> Where:
        return Where(3, 7, self.address) if gid == 0 else Where()

    def vds(self, argv: tuple[bytes, ...], asker: Asker = NO_ASKER) -> bytes:
        return mapping(((b"/", integer(len(argv))),))

    def admin(self, argv: tuple[bytes, ...], done: ValueDone) -> None:
        if self.holds:
            self.held.append(lambda: done(error("BADARG", "later")))
        else:
            done(error("BADARG", b" ".join(argv).decode("utf-8", "replace")))

    def figures(self) -> dict[str, dict[str, str]]:
        return {"Groups": {"groups": "1"}}

    def settings(self) -> dict[bytes, bytes]:
        return {b"NODE.DATA": b"/data", b"NODE.LISTEN": b"127.0.0.1:7379"}


class FakeGuard:
    """Knows `users` by name and password, and `bearers` by token; `holds` their checks."""

    def __init__(
        self,
        users: dict[str, tuple[str, bool]] | None = None,
        bearers: dict[bytes, Principal] | None = None,
    ) -> None:
        self.users, self.bearers = users or {}, bearers or {}
        self.changes: list[UserChange | str] = []
        self.holds = False
        self.held: list[Callable[[], None]] = []

    @property
    def asks(self) -> bool:
        return bool(self.users or self.bearers)

    def check(
        self, name: str, password: str, done: Callable[[Principal | str], None], source: str = ""
    ) -> Callable[[], object]:
        known = self.users.get(name)
        is_right = known is not None and known[0] == password
        return self._answer(Principal(name, known[1]) if is_right else "no such user", done)

    def check_token(
        self, token: bytes, done: Callable[[Principal | str], None]
    ) -> Callable[[], object]:
        return self._answer(self.bearers.get(token, "the token is a bad one"), done)

    def set_user(self, change: UserChange, done: ValueDone) -> None:
        self.changes.append(change)
        done(b"+OK")

    def delete_user(self, name: str, done: ValueDone) -> None:
        self.changes.append(name)
        done(b"+OK")

    def list_users(self, done: ValueDone) -> None:
        done(array(()))

    def _answer(self, found: Any, done: Callable[[Any], None]) -> Callable[[], object]:
        if self.holds:
            self.held.append(lambda: done(found))
        else:
            done(found)
        return lambda: None


class FrontClient:
    """A connection to a backend; `say` sends lines and returns what came back so far."""

    def __init__(
        self,
        backend: RegisterBackend | None = None,
        guard: FakeGuard | None = None,
        attached: dict[tuple[int, int], RespSession] | None = None,
        vocabulary: Mapping[bytes, Parser] = REGISTER_COMMANDS,
    ) -> None:
        self.backend = backend or RegisterBackend()
        self.guard = guard or FakeGuard()
        self.told = 0
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.resp = RespSession(
            self.backend, self.guard, vocabulary, CONNECTION_COMMANDS, number=1,
            attached=attached if attached is not None else {},
            chance_bytes=lambda size: b"\xab" * size, on_output=self._tell,
            call_later=lambda *timer: self.timers.append(timer),
        )  # fmt: skip

    def _tell(self, resp: RespSession) -> None:
        self.told += 1

    def say(self, *lines: str) -> str:
        self.resp.feed("".join(f"{line}\r\n" for line in lines).encode())
        text, has_more = "", True
        while has_more:  # what it says is taken, as by a socket: else there is always more
            has_more = self.resp.advance()
            text += self.heard()
        return text

    def heard(self) -> str:
        return self.resp.take_output().decode() if self.resp.has_output else ""
