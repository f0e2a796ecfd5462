"""Who reads the nodes: readers that keep documents, undo, ask for barriers, or never undo.

Invariants, each an assertion:
1. What comes is what was written under that seqno in the history announced; of a snapshot each key
   at most once. Exact readers hold, after each complete snapshot, the state its history had there.
2. A barrier comes back with or after everything accepted before it was asked for, and names every
   stream that was open all the time.
3. A durable-only reader is told to undo only where deletions were forgotten, or more copies lost
   their data than the level tolerates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.model.position import FailoverLog, Position
from millstream.upr.core.bookkeeper import Answer, Bookkeeper, Document, Effect, Question
from millstream.upr.core.consumer import (
    BarrierReached,
    ChangesReceived,
    ConsumerCore,
    Event,
    RollbackRequired,
    SnapshotCompleted,
    SnapshotStarted,
    StreamEnded,
    StreamOpened,
    StreamRefused,
)
from millstream.upr.core.kept import Kept, kept_from_json
from millstream.wire.mcbp import Opcode, Status
from simulators.simulation.link import Link
from simulators.simulation.truth import Change, replay
from support.streams.keeping_reader import Store
from support.streams.stream_line import Kept as ExactKept
from support.streams.stream_line import Reader as ExactState

if TYPE_CHECKING:
    from simulators.simulation.node import Copy, Node
    from simulators.simulation.world import World


class Reader:
    """Reads one partition, from one node at a time."""

    is_durable_only = False

    def __init__(self, world: World, number: int, partition_id: int) -> None:
        self.world, self.partition_id = world, partition_id
        self.name = f"{type(self).__name__.lower()}{number}"
        self.is_awake = world.rng.random() < 0.5
        self.link: Link | None = None
        self.source: Node
        self.consumer: ConsumerCore
        self.log: FailoverLog = ()
        self.is_open = False
        self.marked: set[bytes] = set()
        """Keys of the snapshot under way."""
        self.awaited: dict[bytes, tuple[int, int]] = {}
        """Cookie -> epoch and high seqno of the source when it was asked for, -1: not known."""

    # -- what a kind of reader says

    def stands(self) -> tuple[Position, FailoverLog]:
        raise AssertionError("every kind says it")

    def undo(self, seqno: int) -> int:
        """Go back to `seqno` or below; return where that is."""
        raise AssertionError("every kind says it")

    def on_undone(self, position: Position) -> None: ...
    def on_opened(self, position: Position, log: FailoverLog) -> None: ...
    def on_started(self, position: Position) -> None: ...
    def on_changes(self, position: Position, frames: list[bytes]) -> None: ...
    def on_completed(self, position: Position) -> None: ...
    def values(self) -> dict[bytes, bytes]:
        raise AssertionError("every kind says it")

    @property
    def position(self) -> Position:
        return self.stands()[0]

    @property
    def is_settled(self) -> bool:
        """Whether nothing is left to do where it stands."""
        return True

    # -- the connection

    @property
    def copy(self) -> Copy:
        """What it reads."""
        return self.source.copies[self.partition_id]

    def disconnect(self) -> None:
        if self.link is not None:
            self.link.cut()
        self.link, self.is_open = None, False
        self.awaited.clear()

    def connect(self, source: Node) -> None:
        world = self.world
        self.source = source
        window_bytes = world.rng.choice((1, 100, 1000, 100_000))
        self.consumer = ConsumerCore(window_bytes=window_bytes, has_extensions=True)
        self.consumer.start(self.name.encode(), noop_interval_s=1)
        if self.is_durable_only:
            self.consumer._ask("durable", Opcode.DCP_CONTROL, b"", b"durable_only", b"true")
        self.link = Link(source, self)
        self.ask()

    def ask(self) -> None:
        self.consumer.follow(self.partition_id, *self.stands())

    def follow(self, source: Node, events_max: int) -> None:
        """Read on from where it is connected to, else from `source`."""
        if self.link is None or self.link.is_cut:
            self.disconnect()
            self.connect(source)
        assert self.link is not None
        if self.is_open and not self.awaited and self.world.rng.random() < 0.2:
            self.ask_barrier()
        self.link.run(events_max)

    def ask_barrier(self) -> None:
        cookie = b"%d" % next(self.world.numbers)
        self.awaited[cookie] = self.copy.partition.epoch, self.copy.end
        self.consumer.ask_barrier(cookie)

    # -- an end of a link

    def receive(self, data: bytes) -> int:
        handled = 0
        for event in self.consumer.receive_data(data):
            self.handle(event)
            handled += 1
            if self.link is None:
                break
        return handled

    def take_bytes(self) -> bytes:
        return self.consumer.take_bytes()

    def work(self) -> bool:
        return False

    # -- what comes

    def handle(self, event: Event) -> None:
        match event:
            case StreamOpened(_, position, log):
                if not self.accepts(log[0].branch):
                    self.disconnect()
                    return
                self.log, self.is_open = log, True
                self.on_opened(position, log)
            case SnapshotStarted(_, position):
                self.marked.clear()
                self.on_started(position)
            case ChangesReceived(_, position, frames):
                for frame in frames:
                    self.check_change(self.world.truth.of(self.log, frame))
                self.on_changes(position, frames)
            case SnapshotCompleted(_, position):
                self.on_completed(position)
            case RollbackRequired(_, seqno, branch):
                if not self.accepts(branch):
                    self.disconnect()
                    return
                point = self.undo(seqno)
                self.world.trace(f"{self.name} told by {self.source.name}: {seqno}, at {point}")
                self.on_undone(self.consumer.undone_to(self.partition_id, point))
            case StreamEnded() | StreamRefused():
                if isinstance(event, StreamRefused):
                    allowed = (Status.NOT_MY_VBUCKET, Status.ETMPFAIL)
                    assert event.status in allowed, event
                self.disconnect()
            case BarrierReached(cookie, reached):
                self.check_barrier(cookie, {p: at.seqno for p, at in reached.items()})
            case _:
                raise AssertionError(f"unexpected {event}")

    def accepts(self, branch: int) -> bool:
        """Whether a source of that branch is read, or undone for."""
        return True

    def check_change(self, change: Change) -> None:
        assert change.key not in self.marked, f"{self.name}: {change.key!r} twice in a snapshot"
        self.marked.add(change.key)

    def check_barrier(self, cookie: bytes, reached: dict[int, int]) -> None:
        epoch, high = self.awaited.pop(cookie)
        if self.copy.partition.epoch != epoch:
            return
        assert self.partition_id in reached, f"{self.name}: an open stream took no part"
        complete = self.complete_end()
        at = reached[self.partition_id]
        assert complete >= at >= high, f"{self.name}: barrier at {at}, had {complete} of {high}"

    def complete_end(self) -> int:
        position = self.consumer.position(self.partition_id)
        is_complete = position.seqno == position.snap_end
        return position.seqno if is_complete else position.snap_start


class Keeping(Reader):
    """Keeps documents, ring and place durably; undoes by fetching; may be killed at any effect."""

    def __init__(self, world: World, number: int, partition_id: int) -> None:
        super().__init__(world, number, partition_id)
        self.ring_changes = world.rng.choice((2, 9, 9, 1000))
        self.kills = world.rng.choice((0, 0, 0.03))
        self.store = Store()
        self.begin()

    def begin(self) -> None:
        """With what was written, as after a kill."""
        kept = kept_from_json(self.store.kept, name="store") if self.store.kept else Kept()
        self.bookkeeper = Bookkeeper(
            self.partition_id, kept, self.store.ring, ring_changes=self.ring_changes
        )

    def stands(self) -> tuple[Position, FailoverLog]:
        return self.bookkeeper.kept.position, self.bookkeeper.kept.failover_log

    @property
    def is_settled(self) -> bool:
        kept = self.bookkeeper.kept
        return not (kept.loaded.is_loading or kept.is_undoing)

    def ask(self) -> None:
        self.consumer.follow(self.partition_id, *self.bookkeeper.start_again())

    def undo(self, seqno: int) -> int:
        return self.bookkeeper.on_rollback(seqno)

    def on_opened(self, position: Position, log: FailoverLog) -> None:
        self.write(self.bookkeeper.on_opened(position, log))
        while self.link is not None and (question := self.bookkeeper.question) is not None:
            self.answer(question)

    def answer(self, question: Question) -> None:
        """Fetch from the node it reads from, if that is still in the history asked about."""
        copy = self.copy
        if copy.node.is_down or copy.partition.failover_log[0].uuid != question.uuid:
            self.disconnect()
            return
        newest = {change.key: change for change in copy.history()}
        documents = [
            Document(key, newest[key].value, newest[key].seqno)
            if key in newest
            else Document(key, None, copy.end)
            for key in question.keys
        ]
        self.write(self.bookkeeper.on_answer(Answer(tuple(documents), copy.end)))

    def on_changes(self, position: Position, frames: list[bytes]) -> None:
        self.write(self.bookkeeper.on_changes(frames, position))

    def on_completed(self, position: Position) -> None:
        self.write(self.bookkeeper.on_moved(position))

    def write(self, effects: list[Effect]) -> None:
        for effect in effects:
            if self.world.rng.random() < self.kills:
                self.world.trace(f"{self.name} is killed before {type(effect).__name__}")
                self.disconnect()
                self.begin()
                return
            self.store.perform(effect)

    def values(self) -> dict[bytes, bytes]:
        return self.store.values


class Durable(Keeping):
    """A durable-only reader: it may load anew after a purge, it can never undo."""

    is_durable_only = True

    def __init__(self, world: World, number: int, partition_id: int) -> None:
        super().__init__(world, number, partition_id)
        self.kills = 0
        self.held: dict[int, Change] = {}
        self.is_excused = False  # more copies lost their data than the level tolerates

    def accepts(self, branch: int) -> bool:
        return not self.log or branch >= self.log[0].branch

    def follow(self, source: Node, events_max: int) -> None:
        is_read = self.link is not None and not self.link.is_cut
        if is_read or source.copies[self.partition_id].is_active:
            super().follow(source, events_max)

    def check_change(self, change: Change) -> None:
        super().check_change(change)
        self.held[change.number] = change

    def undo(self, seqno: int) -> int:
        purge_seqno, position = self.copy.partition.purge_seqno, self.position
        is_allowed = self.is_excused or position.seqno < purge_seqno
        assert is_allowed, f"{self.name} at {position} told by {self.source.name}: {seqno}"
        return super().undo(0)


class Exact(Reader):
    """Restores exactly the states it kept, and checks each complete snapshot."""

    def __init__(self, world: World, number: int, partition_id: int) -> None:
        super().__init__(world, number, partition_id)
        self.state = ExactState()

    def stands(self) -> tuple[Position, FailoverLog]:
        return self.state.position, self.state.failover_log

    def undo(self, seqno: int) -> int:
        return self.state.undo(seqno)

    def on_undone(self, position: Position) -> None:
        self.state.position = position

    def on_opened(self, position: Position, log: FailoverLog) -> None:
        self.state.position, self.state.failover_log = position, log

    def on_started(self, position: Position) -> None:
        self.state.position = position

    def on_changes(self, position: Position, frames: list[bytes]) -> None:
        self.state.apply(frames)
        self.state.position = position

    def on_completed(self, position: Position) -> None:
        right = replay(self.world.truth.history(self.log, position.seqno))
        assert self.state.state == right, f"{self.name} at {position}: {self.state.state}, {right}"
        self.state.position = position
        if self.world.rng.random() < 0.7:
            self.state.kept.append(ExactKept(position.seqno, dict(self.state.state)))

    def values(self) -> dict[bytes, bytes]:
        return self.state.state
