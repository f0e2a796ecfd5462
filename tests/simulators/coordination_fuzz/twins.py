"""Two members that execute the same entries; one of them goes on from snapshots again and again,
and parses every command anew.

Invariants, looked at in every run:
1. Nothing that is logged or read ends a member, sensible or not.
2. Both give every command the same reply, and are the same to the byte, settings included.
3. A command that is refused leaves the state as it was.
4. Reads leave it as it was, and give the same on both.
5. Everything can be frozen, and what was restored is frozen to the same bytes.
"""

from __future__ import annotations

from random import Random

from millstream.coordination.core.group_state import GroupState
from millstream.coordination.core.namespace.audience import Subscriber
from millstream.coordination.core.namespace.commands.command import Words
from millstream.coordination.core.namespace.commands.subscriptions import request_of
from millstream.coordination.core.namespace.commands.transactions import pack_command
from millstream.coordination.core.namespace.refused import Refused
from millstream.coordination.core.namespace.state.access_lists import ADMINS
from millstream.coordination.core.namespace.state.run import Asker
from millstream.vsr.core.entries import Body, Entry, Kind
from millstream.vsr.core.replica.replica import Replica
from millstream.vsr.core.snapshots import Pieces
from millstream.vsr.core.tuning import TUNED
from millstream.vsr.core.values import items
from simulators.coordination_fuzz.choices import Choices
from simulators.coordination_fuzz.commands import ADMITTED, FORMS, Inventor
from support.coordination.namespace_machine import nothing_understood

__all__ = ["frozen_example", "twins"]

INSTANCE = b"i" * 16
READS = frozenset(b"GET LIST LOOKUP".split())
ADMIN = (b"", (ADMINS,))
PEOPLE = (*[ADMIN] * 9, (b"", ()), (b"user", ()), (b"a", (b"b",)))
BEGINNING = (
    b"CREATENAMESPACE /n", b"CREATE BINARY PARENTS /n/a/b/c", b"CREATE QUEUE /n/q x y z",
    b"CREATE LIST /n/l x y z", b"CREATE SET /n/s x y z", b"CREATE COUNTER BIT 8 /n/c",
    b"CREATE BINARY /n/e",
)  # fmt: skip
ENTRIES_MAX = 400


class _State(GroupState):
    """Keeps what was answered."""

    def __init__(self) -> None:
        super().__init__()
        self.replies: list[bytes] = []

    def apply(self, entry: Entry) -> bytes:
        reply = super().apply(entry)
        self.replies.append(reply)
        return reply


class _Member:
    def __init__(self) -> None:
        self.state = _State()
        self.replica = Replica(self.state, lambda: 0.5)

    def log(
        self, ts_ms: int, kind: Kind, body: Body, session: int, csn: int, *, claim: bool
    ) -> bytes | None:
        """Have an entry executed; return the reply, if it was a command that was."""
        replica = self.replica
        replica.state.wall_ms = ts_ms
        self.state.replies.clear()
        entry = replica.parts.execution.next_entry(kind, body, INSTANCE, session, csn, claim)
        replica.parts.execution.advance(entry.lsn)
        replica.state.effects.clear()
        return self.state.replies[0] if self.state.replies else None

    @property
    def frozen(self) -> bytes:
        return b"".join(self.replica.parts.execution.freeze())

    def again(self, frozen: bytes) -> None:
        """Go on from a snapshot."""
        for _ in self.replica.parts.execution.restore(Pieces([frozen])):
            pass

    @property
    def tuned(self) -> list[int]:
        return [getattr(self.replica.state.tuning, attribute) for attribute in TUNED.values()]


class _Twins:
    def __init__(self, data: bytes) -> None:
        self.choices = Choices(data)
        self.inventor = Inventor(self.choices, FORMS)
        self.rare = Inventor(self.choices, ADMITTED)
        self.one, self.other = _Member(), _Member()
        self.lsn = 0
        self.csns: dict[int, int] = {}
        self.listener = Subscriber(lambda: None, Asker(groups=(ADMINS,)))

    def run(self) -> None:
        for words in BEGINNING:
            self.log(Kind.REQUEST, [b"0", *words.split()], user=ADMIN)
        for _ in range(2):
            self.log(Kind.SESSION_OPEN, [b"5000", b"s"])
        while not self.choices.is_over and self.lsn < ENTRIES_MAX:
            self.step()
        self.compare()

    def step(self) -> None:
        what = self.choices.number(31)
        if what == 0:
            self.log(Kind.SESSION_OPEN, [b"5000", b"s"])
        elif what == 1 and self.csns:
            self.log(self.choices.pick((Kind.SESSION_CLOSE, Kind.REQUEST)), [], self.session())
        elif what == 2:
            numbers = [b"%d" % self.session() for _ in range(self.choices.number(3))]
            self.log(Kind.SESSION_EXPIRE, [*numbers, b"x"])
        elif what in (3, 4):
            self.lapse()
        elif what in (5, 6):
            self.compare()
        elif what == 7:
            self.subscribe()
        elif what in (8, 9, 10):
            self.read(self.inventor.command())
        elif what == 11:
            self.log(Kind.REQUEST, [self.choices.text(3) for _ in range(self.choices.number(3))])
        elif what == 12:
            many = [self.inventor.command() for _ in range(self.choices.number(5))]
            self.request([b"EXEC", *map(pack_command, many)])
        elif what == 13:
            self.request(self.rare.command())
        else:
            self.request(self.inventor.command())

    def session(self) -> int:
        """Return one of the last, or none."""
        known = [*list(self.csns)[-5:], 0]
        return self.choices.pick(known)

    def request(self, words: list[bytes]) -> None:
        """Log it as a client's, perhaps a second time, perhaps for what it waits for."""
        session, stamp = self.session(), self.choices.pick((b"0", b"1700000000000", b"9" * 20))
        csn, how = 0, self.choices.number(9)
        if session:
            csn = max(self.csns[session] + (1 if how else 0), 1)
            self.csns[session] = csn
            if how == 1:
                csn = self.choices.number(csn)
        self.log(Kind.REQUEST, [stamp, *words], session, csn, claim=how in (0, 2))

    def lapse(self) -> None:
        """End offers, those there are or none."""
        words = []
        for offer in self.one.state.offers():
            words += [offer.path, b"%d" % offer.session, b"%d" % offer.lsn]
        if self.choices.one_in(3):
            words.append(self.inventor.word("PATH"))
        self.log(Kind.TICK, words)

    def log(
        self, kind: Kind, argv: list[bytes], session: int = 0, csn: int = 0, *,
        claim: bool = False, user: tuple[bytes, tuple[bytes, ...]] | None = None,
    ) -> None:  # fmt: skip
        """Have both do it, and compare what they say."""
        self.lsn += 1
        who, groups = user or self.choices.pick(PEOPLE)
        before = self.one.frozen if self.choices.one_in(4) else b""
        ts_ms = 10**12 + self.lsn * 100
        body = Body(who, groups, tuple(argv))
        reply = self.one.log(ts_ms, kind, body, session, csn, claim=claim)
        with nothing_understood():
            same = self.other.log(ts_ms, kind, body, session, csn, claim=claim)
        assert reply == same, (argv, reply, same)
        if kind is Kind.SESSION_OPEN:
            self.csns[self.one.replica.log.head.lsn] = 0
        if reply is None:
            return
        assert reply[:1] in b"+-=:#_*%~", (argv, reply)
        if before and reply.startswith(b"-") and not session:
            assert before == self.one.frozen, ("refused, and yet changed", argv, reply)
        self.learn(reply)

    def learn(self, reply: bytes) -> None:
        """Let words of a reply come back."""
        if reply[:1] == b"=":
            self.inventor.remember(reply[1:])
        elif reply[:1] in b"*%~>":
            for item in items(reply)[:8]:
                self.learn(item)

    def read(self, words: list[bytes]) -> None:
        """Ask both, who stay as they are."""
        user, groups = self.choices.pick(PEOPLE)
        body, session = Body(user, groups, tuple(words)), self.session()
        before = self.one.frozen if self.choices.one_in(4) else b""
        reply = self.one.state.read(body, session)
        assert reply == self.other.state.read(body, session), words
        assert not before or before == self.one.frozen, ("read, and yet changed", words)
        self.learn(reply)

    def subscribe(self) -> None:
        """Have one of them tell what happens; it is the same all the same."""
        words = [self.inventor.word("PATH")]
        for option in ([b"TREE"], [b"CHILDREN"], [b"MODE", b"DATA"], [b"FROM", b"1"]):
            words += option if self.choices.one_in(2) else []
        if self.choices.one_in(4):
            words += [b"DURABLE", self.inventor.word("VALUE")]
        try:
            request = request_of(Words(words, "SUBSCRIBE"))
        except Refused:
            return
        self.log(Kind.REQUEST, [b"0", *request.mark], self.session() if request.durable else 0)
        self.one.state.subscribe(
            self.listener, request, self.one.replica.commit_lsn, lambda _: None
        )
        for message in self.listener.take(1 << 20):
            assert message.payload.startswith(b"{"), message

    def compare(self) -> None:
        """Both are the same to the byte; the other one goes on from a snapshot."""
        frozen = self.one.frozen
        assert frozen == self.other.frozen
        assert self.one.tuned == self.other.tuned
        self.other = self.other if self.choices.one_in(3) else self._fresh(frozen)
        assert frozen == self.other.frozen

    def _fresh(self, frozen: bytes) -> _Member:
        """Return the other one, or a new one, as a snapshot has it."""
        self.other.again(frozen)
        return self.other


def twins(data: bytes) -> None:
    """Have two members do what the bytes say."""
    _Twins(data).run()


def frozen_example() -> bytes:
    """Return a state with something of everything in it, as a snapshot has it."""
    made = _Twins(Random(7).randbytes(4000))
    made.run()
    return made.one.frozen
