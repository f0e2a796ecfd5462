"""Callers and hearers of `hearing_schedules`, and what they are held to.

Callers give each change a number and repeat it, over connections that are lost and sessions that
move, until they are answered. Hearers subscribe to a tree on any member, are cut off in the middle
of an entry, do not read for long, and go on from where they were, by LSN or by a durable name.

Invariants:
1. A change is executed once; who is told what became of it is told the truth.
2. A hearer gets what happened behind where it began: by LSN, each part once, all of it; or it is
   told that it does not (`HISTORY_LOST`), and then more than the history had happened.
3. `start`, `progress` and `overrun` name no LSN up to which it was not told all.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from millstream.coordination.core.client.wire import Replies, is_push
from millstream.coordination.core.group_state import GROUP_COMMANDS
from millstream.coordination.core.namespace.commands.transactions import unpack_command
from millstream.coordination.core.resp.common_commands import CONNECTION_COMMANDS
from millstream.coordination.core.resp.session import RespSession
from millstream.vsr.core.entries import Entry
from support.coordination.coordination_backend import FakeGuard

if TYPE_CHECKING:
    from simulators.hearing_schedules import Node, World

HISTORY: Final = 12
PATIENCE: Final = 200
"""Steps after which a caller or hearer tries another connection."""
ROOT: Final = "/ns"
REFUSED: Final = (b"BUSY", b"NOQUORUM", b"NOTPRIMARY", b"SESSIONMOVED")
"""This attempt was not executed, and another may be made."""
CHANGES: Final = {b"PUT": "put", b"CREATE": "create", b"DELETE": "delete"}


class WrongError(Exception):
    """An invariant does not hold."""


def require(claim: object, text: str) -> None:
    if not claim:
        raise WrongError(text)


def code_of(reply: Any) -> bytes:
    """Return the first word of an error; nothing for what is none."""
    return str(reply).split(" ")[0].encode() if isinstance(reply, Exception) else b""


class Update(NamedTuple):
    """What a hearer of the tree is to be told."""

    lsn: int
    part: int
    parts: int
    op: str
    path: str
    data: bytes | None


class Ledger:
    """What entries did, as whoever executed them first has found."""

    def __init__(self) -> None:
        self.replies: dict[int, bytes] = {}
        self.ops: dict[int, tuple[int, bool]] = {}
        """A change's number -> its entry, and whether it succeeded."""
        self.updates: list[Update] = []
        self.first_at: dict[int, int] = {}
        """LSN -> place of its first update."""

    def note(self, entry: Entry, reply: bytes) -> None:
        """Take what a member made of an entry."""
        known = self.replies.setdefault(entry.lsn, reply)
        require(known == reply, f"entry {entry.lsn} is answered {known!r} and {reply!r}")
        stamp, *words = entry.content.argv
        if not int(stamp) or (int(stamp) in self.ops and self.ops[int(stamp)][0] == entry.lsn):
            return
        require(int(stamp) not in self.ops, f"change {int(stamp)} is executed twice")
        self.ops[int(stamp)] = entry.lsn, not reply.startswith(b"-")
        is_many = words[0] == b"EXEC"
        done = [unpack_command(word) or () for word in words[1:]] if is_many else [tuple(words)]
        if not reply.startswith(b"-") and reply != b"+EXISTS":
            self.first_at[entry.lsn] = len(self.updates)
            for part, (name, *rest) in enumerate(done):
                path, *data = (word for word in rest if word != b"BINARY")
                self.updates.append(Update(
                    entry.lsn, part, len(done), CHANGES[name], path.decode(),
                    data[0] if data else None,
                ))  # fmt: skip

    def behind(self, lsn: int) -> int:
        """Return the place of the first update that is later."""
        return sum(1 for update in self.updates if update.lsn <= lsn)


class Line:
    """A client's connection."""

    def __init__(self, world: World, node: Node) -> None:
        self.world, self.node = world, node
        self._values = Replies()
        self.expected: deque[str] = deque()
        self.since = world.steps
        backend: Any = node
        self.resp = RespSession(
            backend, FakeGuard(), GROUP_COMMANDS, CONNECTION_COMMANDS, number=1,
            attached=node.attached, chance_bytes=world.rng.randbytes,
            on_output=lambda _: None, call_later=lambda *_: None,
        )  # fmt: skip

    def say(self, what: str, *lines: str) -> None:
        """Send requests; of their replies only the last means something."""
        self.expected += [""] * (len(lines) - 1) + [what]
        self.resp.feed("".join(f"{line}\r\n" for line in lines).encode())

    def hear(self) -> list[Any]:
        """Return what came meanwhile."""
        self.resp.advance()
        output = self.resp.take_output() if self.resp.has_output else b""
        return list(self._values.feed(output))


class Client:
    """Somebody with a connection, most of the time."""

    def __init__(self, world: World) -> None:
        self.world, self.rng = world, world.rng
        self.line: Line | None = None
        self.session = ""

    def step(self) -> None:
        """Go on by one turn."""
        if self.line is None or self.world.nodes.get(self.line.node.number) is not self.line.node:
            self.lost()
            node = self.world.any_node()
            if node is not None:
                self.line = Line(self.world, node)
                self.begin(self.line)
            return
        for value in self.line.hear():
            if self.line is not None:
                self.take(value)
        if self.line is not None:
            self.go_on(self.line)

    def begin(self, line: Line) -> None:
        if self.session:
            line.say("resume", f"SESSION RESUME {self.session}")
        else:
            line.say("open", "SESSION OPEN")

    def take(self, value: Any) -> None:
        assert self.line is not None
        self.line.since = self.world.steps
        what, code = self.line.expected.popleft(), code_of(value)
        if not what:
            return
        if code == b"SESSIONEXPIRED":
            self.session = ""
            self.cut()
        elif what in ("open", "resume"):
            pairs = dict(zip(value[::2], value[1::2], strict=True)) if not code else {}
            if what == "open" and not code:
                self.session = f"{pairs[b'client_id'].decode()} {pairs[b'secret'].decode()}"
            if code:
                self.cut()
        else:
            self.answered(what, value, code)

    def answered(self, what: str, value: Any, code: bytes) -> None:
        """Take the reply to what was said, and no error of the session."""

    def go_on(self, line: Line) -> None:
        """Say something, or end it."""

    def cut(self) -> None:
        """Lose the connection, with what was on its way."""
        if self.line is not None:
            self.line.resp.close()
            self.line = None
        self.lost()

    def lost(self) -> None:
        """What was asked for is not going to be answered."""


class Caller(Client):
    """Changes things, each once."""

    def __init__(self, world: World, number: int) -> None:
        super().__init__(world)
        self.number, self.csn, self.op = number, 0, 0
        self.lines: tuple[str, ...] = ()
        self.of_session = ""
        self.is_sent = self.is_doubtful = False

    def go_on(self, line: Line) -> None:
        world = self.world
        if line.expected:
            if world.steps > line.since + PATIENCE:
                self.cut()
        elif self.op and self.of_session != self.session:
            self.give_up()  # nobody knows the number but the session that has ended
        elif self.op and not self.is_sent:
            self.is_sent = True
            line.say("call", *self.lines)
        elif not self.op and not world.is_calm and self.rng.random() < 0.4:
            self._invent()

    def _invent(self) -> None:
        world = self.world
        world.ops += 1
        self.csn += 1
        self.op, self.of_session, self.is_doubtful = world.ops, self.session, False
        path = f"{ROOT}/{self.rng.choice('ab')}"
        child = f"{ROOT}/a/{self.rng.choice('xyz')}"
        prefix, value = f"CSN {self.csn} CTS {self.op}", f"value{self.op}"
        self.lines = self.rng.choice((
            (f"{prefix} PUT {path} {value}",), (f"{prefix} PUT {path} {value}",),
            (f"{prefix} CREATE BINARY {child} {value}",), (f"{prefix} DELETE {child}",),
            ("MULTI", f"PUT {ROOT}/a {value}", f"PUT {path} {value}", f"{prefix} EXEC"),
        ))  # fmt: skip

    def answered(self, what: str, value: Any, code: bytes) -> None:
        self.is_sent = False
        if code == b"UNKNOWN":
            self.is_doubtful = True
        elif code == b"CSNGONE":
            self.is_doubtful = True
            self.give_up()
        elif code in REFUSED:
            if code != b"BUSY":
                self.cut()
        else:
            lsn, succeeded = self.world.ledger.ops.get(self.op, (0, False))
            require(lsn, f"change {self.op} was never executed, and is answered {value!r}")
            require(succeeded == (not code), f"change {self.op} of {lsn} is answered {value!r}")
            self.world.counts["answered"] += 1
            self.op = 0

    def lost(self) -> None:
        self.is_doubtful = self.is_doubtful or self.is_sent
        self.is_sent = False
        if self.op and self.rng.random() < 0.05:
            self.give_up()

    def give_up(self) -> None:
        if not self.is_doubtful:
            self.world.failed.add(self.op)
        self.op, self.is_sent = 0, False


class Hearer(Client):
    """Hears the tree, in RESP3."""

    def __init__(self, world: World, name: str = "") -> None:
        super().__init__(world)
        self.name = name
        self.done_lsn: int | None = None
        """Up to here all was told."""
        self.parts = 0
        """Of the entry behind it."""
        self.acked = self.acking = self.maybe_acked = 0
        self.away_until = 0

    @property
    def is_up_to_date(self) -> bool:
        updates = self.world.ledger.updates
        done = self.done_lsn
        return (
            self.line is not None
            and done is not None
            and done >= (updates[-1].lsn if updates else 0)
        )

    def step(self) -> None:
        if self.world.is_calm or self.world.steps >= self.away_until:
            super().step()

    def begin(self, line: Line) -> None:
        line.say("", "HELLO 3")
        if self.name:
            super().begin(line)
        else:
            self._subscribe(line)

    def _subscribe(self, line: Line) -> None:
        origin = ""
        if self.name:
            origin = f"DURABLE {self.name}"
        elif self.done_lsn is not None:
            origin = f"FROM {self.done_lsn}"
        self.parts = 0
        line.say("subscribed", f"SUBSCRIBE {ROOT} TREE MODE DATA {origin}")

    def take(self, value: Any) -> None:
        if not is_push(value):
            was_open = bool(self.session)
            if isinstance(value, dict):
                value = [part for pair in value.items() for part in pair]
            before = self.line.expected[0] if self.line and self.line.expected else ""
            super().take(value)
            if before == "open" and self.session and not was_open:
                self.acked = self.maybe_acked = 0
                self.done_lsn = None
            if before in ("open", "resume") and self.line is not None:
                self._subscribe(self.line)
            return
        assert self.line is not None
        self.line.since = self.world.steps
        kind, _, payload = value
        if kind == b"subscribe":
            self.line.expected.popleft()
            if self.name:
                self.done_lsn = None  # where it was acknowledged, or was about to be
            if self.name and not self.maybe_acked:
                self.maybe_acked = max(self.world.ledger.replies)
        elif kind == b"message":
            self.told(json.loads(payload))

    def answered(self, what: str, value: Any, code: bytes) -> None:
        if code == b"HISTORY_LOST":
            self._lose(int(str(value).split()[1]))
        if what == "ack":
            if not code:
                self.acked = max(self.acked, self.acking)
        else:
            self.cut()

    def _lose(self, lsn: int) -> None:
        ledger, known = self.world.ledger, self.acked if self.name else self.done_lsn or 0
        missed = ledger.behind(lsn) - ledger.behind(known)
        require(missed > HISTORY or self.name, f"{missed} updates are kept, and said to be lost")
        self.world.counts["history lost"] += 1
        if self.name:
            self.name += "x"
            self.acked = self.maybe_acked = 0
        self.done_lsn = None if self.name else lsn

    def told(self, text: dict[str, Any]) -> None:
        """Take a message."""
        op, lsn, ledger = text["op"], text["lsn"], self.world.ledger
        if op in ("start", "progress", "overrun"):
            done = self.done_lsn
            if done is None:
                done = lsn if op == "start" else self.maybe_acked
            missed = ledger.behind(lsn) - ledger.behind(done)
            require(missed <= 0, f"{op} {lsn} hides {missed} updates behind {done}")
            self.done_lsn = max(lsn, done)
            self.world.counts[op] += 1
            if op == "overrun":
                self._go_on_after(lsn)
            return
        if self.done_lsn is None:
            self._find(lsn)
        assert self.done_lsn is not None
        at = ledger.behind(self.done_lsn) + self.parts
        want = ledger.updates[at] if at < len(ledger.updates) else None
        data = b64decode(text["data"]) if "data" in text else None
        got = Update(lsn, text.get("part", 0), text.get("parts", 1), op, text["path"], data)
        is_same = want is not None and got == want._replace(
            data=want.data if want.op != "delete" else data
        )
        require(is_same, f"told {got} instead of {want}")
        self.parts += 1
        if self.parts == got.parts:
            self.done_lsn, self.parts = lsn, 0
        self.world.counts["heard"] += 1

    def _go_on_after(self, lsn: int) -> None:
        """Subscribe again, here or elsewhere; a durable one first says how far it is."""
        assert self.line is not None
        if self.name:
            self._acknowledge(self.line, lsn)
        if self.name or self.rng.random() < 0.5:
            self._subscribe(self.line)
        else:
            self.cut()

    def _acknowledge(self, line: Line, lsn: int, chance: float = 1.0) -> None:
        if lsn <= self.acked or self.rng.random() >= chance:
            return
        self.acking, self.maybe_acked = lsn, max(self.maybe_acked, lsn)
        line.say("ack", f"SUBACK {self.name} {lsn}")

    def _find(self, lsn: int) -> None:
        """The first message behind something that was, or may have been, acknowledged."""
        ledger = self.world.ledger
        at = ledger.first_at.get(lsn)
        require(at is not None, f"told of entry {lsn}, which did nothing")
        assert at is not None
        latest = ledger.behind(self.maybe_acked)
        require(at <= latest, f"{at - latest} updates behind {self.maybe_acked} are not told")
        require(at >= ledger.behind(self.acked), f"entry {lsn} was acknowledged and is told again")
        self.done_lsn = lsn - 1

    def go_on(self, line: Line) -> None:
        done = self.done_lsn
        if line.expected and self.world.steps > line.since + PATIENCE:
            self.cut()
        elif self.name and not line.expected and not self.parts and done is not None:
            self._acknowledge(line, done, chance=0.2)
