"""A group's namespaces once more: each committed entry is executed a second time, and looked at.

Invariants:
1. Members execute an entry with the result, and to the state, that it has here; their snapshots
   are byte for byte what is frozen here.
2. What has to hold of namespaces, whoever executes, is looked at after every entry
   (`namespace_truth`); an attempt that was refused is never executed.
3. Ephemeral elements are there as long as their session, and no longer. Names in sequence grow.
4. One leads at most, under the token of the entry that made it lead, and what the element that is
   led by holds was said by a leader while it led, or when it asked to.
5. Nobody waits at a queue while more is ready than is told of, and who came first is told first;
   who is told so finds something.
6. Who is offered something is told so by the same entry.
7. How far a durable subscription was heard never becomes less, and goes with its session.

Elsewhere: clients (`namespace_clients`), who hears of changes (`hearers`), registers (`truth`).
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Any
from zlib import crc32

from millstream.coordination.core.group_state import GroupState
from millstream.coordination.core.namespace.paths import Path, parse_path
from millstream.coordination.core.namespace.state.claims import Mode, Phase
from millstream.coordination.core.namespace.state.run import Notice
from millstream.vsr.core.client_table import ClientTable
from millstream.vsr.core.effects import Code, Reply
from millstream.vsr.core.entries import Body, Entry, Kind
from millstream.vsr.core.replica.parts import PartTypes
from millstream.vsr.core.replica.replica import Replica
from millstream.vsr.core.replica.snapshot_taking import Snapshots
from simulators.coordination_sim.hearers import Told
from simulators.coordination_sim.loop import stream
from simulators.coordination_sim.names import ALONE, Names
from simulators.coordination_sim.rights import GUARDED, Rights
from simulators.coordination_sim.states import RecordedRegisters
from simulators.namespace_callers import is_pending
from simulators.namespace_truth import QUEUE, TellingTable, Truth, WatchedState, require

if TYPE_CHECKING:
    from simulators.coordination_sim.world import World

STATE_EVERY = 16
"""After so many entries states are compared as a whole; snapshots besides."""
ATTEMPTS = 10**6
SEQUENCE, LEADER, AWAITED = "/h/sequence", "/h/leader", "/h/awaited"
REGISTER = "/h/register"
ROOTS = (b"/h", b"/n", GUARDED[0].encode())
"""What is subscribed to."""
FORMAT_MAX = 2


def number_of(state: GroupState, lsn: int) -> int:
    """Return what the namespaces add to the number of a state."""
    tables = state.state.tables
    return 0 if lsn % STATE_EVERY or tables.is_empty else 1 + crc32(b"".join(tables.freeze()))


class RecordedState(GroupState):
    """A group's state that says what it was told to execute, and a number for it."""

    def __init__(self) -> None:
        super().__init__()
        self.registers: RecordedRegisters = RecordedRegisters()
        self._format_max = 1

    @property
    def format_max(self) -> int:
        return self._format_max

    @format_max.setter
    def format_max(self, number: int) -> None:
        self._format_max = number

    def apply(self, entry: Entry) -> bytes:
        reply = super().apply(entry)
        number = self.registers.number + number_of(self, entry.lsn)
        self.registers.executed[entry.lsn] = reply, number
        return reply

    def __getattr__(self, name: str) -> Any:
        """Have what registers have that say what they do."""
        if name in ("executed", "is_astray", "was_astray", "go_astray"):
            return getattr(self.registers, name)
        raise AttributeError(name)

    @property
    def is_restored(self) -> bool:
        return self.registers.is_restored

    @is_restored.setter
    def is_restored(self, is_it: bool) -> None:
        self.registers.is_restored = is_it

    @property
    def values(self) -> Any:
        return self.registers.values

    @property
    def ends(self) -> bytes:
        """What members have to have alike in the end."""
        return b"".join(self.state.tables.freeze())


class ShadowTruth(Truth):
    """What was seen, with clients of registers beside those of namespaces."""

    def __init__(self, names: Names) -> None:
        super().__init__()
        self.names = names
        self.refused: set[int] = set()
        self.failed: set[int] = set()
        self.ephemeral: dict[str, int] = {}
        self.queues: dict[Any, set[bytes]] = {}
        self.counters: dict[Any, int] = {}
        self.sequence = -1
        self.changed: list[tuple[tuple[Any, ...], bytes]] = []
        """What the last entry did, and with what reply."""
        self.notices: list[Notice] = []
        """Whom the last entry told that it is worth to ask again."""
        self.leader: tuple[int, int] = (0, 0)
        """The LSN of the last token to lead, and whose it is as long as it leads."""
        self.led_with = b""
        self.users: dict[int, str] = {}
        """Whose a request is."""
        self.rights = Rights(names)
        self.past: dict[str, dict[int, tuple[str, str]]] = {}
        """Path of a register -> LSN of a change -> its version, and the value."""
        self.heard: dict[tuple[int, bytes], int] = {}
        """Session and name of a durable subscription -> how far it was heard."""
        self.said: dict[int, set[bytes]] = {}
        """Session -> what it has said as a leader, or to become one."""

    def place(self, path: str) -> Path:
        return parse_path(self.names.real(path).encode())

    def executed(self, state: GroupState, entry: Entry, was_open: bool, reply: bytes) -> None:
        argv, header = entry.content.argv, entry.header
        if not argv[0].isdigit() or argv[1] == b"NAMESPACE":  # nobody's: it is the node's
            return
        if argv[1] == b"MARK":
            if b"DURABLE" in argv and reply == b"+OK":
                self.heard.setdefault((header.session, argv[-1]), header.lsn)
            return
        super().executed(state, entry, was_open, reply)
        op = self.ops[header.session, header.csn]
        self.rights.executed(self.users[op], entry.content, self.requests[op], reply, header.lsn)
        attempt = int(argv[0]) % ATTEMPTS
        if not reply.startswith(b"-"):
            require(attempt not in self.refused, "an attempt that was refused was executed")

    def _note(
        self, state: GroupState, session: int, lsn: int, request: tuple[Any, ...], reply: bytes
    ) -> None:
        self.changed.append((request, reply))
        if request[0] == "EXEC":
            super()._note(state, session, lsn, request, reply)
            return
        if any(str(word).startswith("/h/") for word in request[1:]):
            if request[0] == "CREATE" and "SEQUENTIAL" in request and not reply.startswith(b"-"):
                path = self.names.plain(reply[1:].decode())
                number = int(path.removeprefix(f"{SEQUENCE}/n"))
                require(number > self.sequence, f"number {number} is given out again")
                self.sequence = number
                self.ephemeral[path] = session
            elif request[0] == "DELETE" and reply == b"+OK":
                self.ephemeral.pop(request[1], None)
            elif request[0] == "PUT" and "IFLOCK" in request and reply == b"+OK":
                self._check_fence(state, *request[1:])
            if request[:3] == ("ELECT", "CAMPAIGN", LEADER) or request[:2] == ("PUT", LEADER):
                data = request[3 if request[0] == "ELECT" else 2]
                self.said.setdefault(session, set()).add(data.encode())
            return
        if request[0] == "SUBACK" and reply == b"+OK":
            key = session, request[1].encode()
            self.heard[key] = max(self.heard[key], min(int(request[2]), lsn))
        self._see_queue(state)
        if request[0] != "COUNTER":
            super()._note(state, session, lsn, request, reply)
            return
        element = state.state.elements.find(self.place(request[-1]))
        self.counted = self.counters.get(element, 0)
        super()._note(state, session, lsn, request, reply)
        self.counters[element] = self.counted

    def _check_fence(self, state: GroupState, path: str, _: str, __: str, token: str) -> None:
        space = state.state
        element = space.elements.find(self.place(path))
        claims = space.synchronisation.claims.of(element, Phase.HELD, Mode.WRITE)
        held = [claim.token.text.decode() for _, claim in claims]
        require(token in held, f"{path} is written under {token}, held are {held}")

    def _check_leader(self, space: Any, lsn: int) -> None:
        element = space.elements.find(self.place(LEADER))
        if element is None:
            return
        claims = list(space.synchronisation.claims.of(element, Phase.HELD, Mode.WRITE))
        require(len(claims) < 2, f"{len(claims)} lead at once")
        token, leads = self.leader
        now = (claims[0][1].token.lsn, claims[0][1].session) if claims else (token, 0)
        if now[0] != token:
            require(now[0] == lsn > token, f"the token to lead is of {now[0]}, not of {lsn}")
            require(now[1] != leads, f"session {leads} goes on to lead, and its token is another")
        data = space.data.of(element)
        if data != self.led_with:
            said = self.said.get(now[1], ())
            require(data in said, f"session {now[1]} leads, and {data!r} was said by another")
        self.leader, self.led_with = now, data

    def _check_awaited(self, space: Any, lsn: int) -> None:
        element = space.elements.find(self.place(AWAITED))
        if element is None:
            return
        sync, ready = space.synchronisation, space.queues.ready(element)
        waiting = next(sync.claims.of(element, Phase.WAITING, Mode.ITEM), None)
        offers = [name for name, _ in sync.claims.of(element, Phase.OFFERED, Mode.ITEM)]
        is_told = waiting is None or len(offers) >= ready
        require(is_told, f"{ready} items are ready, {len(offers)} are told, and another one waits")
        late = [name for name in offers if waiting and name > waiting[0]]
        late = [name for name in late if sync.waits.there(name).offer == lsn]
        require(not late, "who waits for items is told before who came first")
        for request, reply in self.changed:
            is_there = request[:3] != ("QUEUE", "WAIT", AWAITED) or reply != b"+OK" or ready
            require(
                is_there, "who waited for items is told that there are some, and there are none"
            )

    def _check_notices(self, space: Any, lsn: int) -> None:
        for _, wait in space.synchronisation.waits.offers():
            if wait.offer == lsn:
                path = space.elements.path(wait.elements[0])
                told = [notice[:2] for notice in self.notices]
                is_told = (wait.session, path) in told
                require(is_told, f"session {wait.session} is offered {path!r}, and not told")

    def _note_past(self, space: Any, lsn: int) -> None:
        for (name, *words), reply in self.changed:
            path = words[1 if name == "CREATE" else 0]
            is_done = reply == b"+OK" and name in ("PUT", "CREATE")
            if is_done and str(path).startswith(REGISTER):
                element = space.elements.find(self.place(path))
                version = space.elements.there(element).version.text.decode()
                self.past.setdefault(path, {})[lsn] = version, space.data.of(element).decode()

    def _check_heard(self, replica: Replica, space: Any) -> None:
        for key, lsn in list(self.heard.items()):
            known = space.marks.heard(*key)
            if key[0] in replica.table:
                require(known == lsn, f"session {key[0]} has heard up to {lsn}, not {known}")
            else:
                require(known is None, f"what session {key[0]} heard outlives it")
                del self.heard[key]

    def _see_queue(self, state: GroupState) -> None:
        element = state.state.elements.find(self.place(QUEUE))
        self.pushed = self.queues.setdefault(element, set())

    def final(self, session: int, csn: int, value: bytes) -> None:
        if (session, csn) in self.ops:
            super().final(session, csn, value)

    def check(self, replica: Replica, kind: Kind) -> None:
        machine = replica.machine
        assert isinstance(machine, GroupState)
        self._see_queue(machine)
        super().check(replica, kind)
        self.sessions.intersection_update(replica.table)
        elements = machine.state.elements
        self._check_leader(machine.state, replica.commit_lsn)
        self._note_past(machine.state, replica.commit_lsn)
        self._check_notices(machine.state, replica.commit_lsn)
        self._check_heard(replica, machine.state)
        self._check_awaited(machine.state, replica.commit_lsn)
        for path, session in list(self.ephemeral.items()):
            is_there = elements.find(self.place(path)) is not None
            if session in replica.table:
                require(is_there, f"{path} is gone, and its session is not")
            else:
                require(not is_there, f"{path} outlives its session")
                del self.ephemeral[path]


class ShadowState(WatchedState):
    """Keeps the reply to the last entry."""

    format_max = FORMAT_MAX
    reply: bytes | None = None

    def apply(self, entry: Entry) -> bytes:
        self.reply = super().apply(entry)
        return self.reply


class NoSnapshots(Snapshots):
    """Takes none."""

    def take_snapshot(self, asked: Entry) -> None: ...

    def hold_stable(self, named: Entry) -> None: ...


class Executor(Replica):
    """Executes, and does nothing else."""

    part_types = PartTypes(snapshots=NoSnapshots)


class Shadow:
    """What the committed entries make."""

    def __init__(self, world: World, names: Names = ALONE) -> None:
        self.world, self.names, self.truth = world, names, ShadowTruth(names)
        rng = stream(world.seed, "shadow")
        self.state = ShadowState(self.truth, rng)
        self.state.audience.on_notice = lambda notice: self.truth.notices.append(notice)
        self.replica = Executor(self.state, rng.random)
        self.replica.state.table = TellingTable(self.truth)
        self.told = {root: Told(root, names) for root in ROOTS}

    def commit(self, entry: Entry, at_lsn: dict[int, tuple[bytes, int]], number: int) -> None:
        """Execute the next entry; note its result, and look."""
        self.state.reply, self.truth.changed, self.truth.notices = None, [], []
        self.replica.log.append(entry)
        self.replica.parts.execution.advance(entry.lsn)
        self.truth.check(self.replica, entry.header.kind)
        if self.state.reply is not None:
            at_lsn[entry.lsn] = self.state.reply, number + number_of(self.state, entry.lsn)
        if entry.header.kind is Kind.SNAPSHOT:
            digest = sha256(b"".join(self.replica.parts.execution.freeze())).digest()
            self.world.truth.states.hashes[entry.lsn] = digest
        for told in self.told.values():
            told.take(self.state, entry.lsn, self.truth.changed)

    @property
    def table(self) -> ClientTable:
        """The sessions that there are."""
        return self.replica.table

    # ---- answers

    def check_answer(self, key: tuple[int, int], body: Body, reply: Reply) -> None:
        """A request is answered with what it came to, or was not executed."""
        truth = self.truth
        if reply.code is Code.OK:
            if body.argv[1] == b"MARK":
                return
            require(key in truth.ops, f"request {key} is answered {reply}, and never executed")
            known = truth.finals.get(truth.ops[key])
            is_told = known == reply.value or is_pending(reply.value)
            require(is_told, f"request {key} is answered {reply.value!r}, it was {known!r}")
        elif reply.code is Code.CSNGONE:
            truth.check_gone(self.replica, key)
        elif reply.code is Code.SESSIONEXPIRED:
            lives = key[0] in self.table
            require(not lives, f"session {key[0]} lives, and its client is told that it does not")
        elif reply.code is not Code.UNKNOWN:
            attempt = int(body.argv[0]) % ATTEMPTS
            require(attempt not in truth.ran, f"{reply.code} to what was executed")
            truth.refused.add(attempt)

    def check_read(self, body: Body, session: int, floor: int, reply: Reply) -> None:
        """A read has all that was committed when it was asked for, and nothing else."""
        if reply.code is not Code.OK:
            return
        end = self.replica.commit_lsn
        require(floor <= reply.lsn <= end, f"stale read: {reply.lsn} of {floor} entries")
        self.truth.rights.check_read(body, reply.lsn, reply.value)
        if reply.lsn == end:
            wanted = self.state.read(body, session)
            require(reply.value == wanted, f"a read of {body.argv} is {reply.value!r}")

    def check_failed(self) -> None:
        """What clients know to have failed was never done."""
        done = {op for op, value in self.truth.finals.items() if value[:1] != b"-"}
        require(not self.truth.failed & done, "what is said to have failed was done")
