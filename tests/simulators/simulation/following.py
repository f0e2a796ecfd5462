"""What a node's copies follow: one connection to each source node, with the real feed behind it.

What the shell of a feed does is done late, in any order: documents are read, copies rolled back,
pauses over.

Invariant, an assertion: a copy's position is the one its stream says whenever nothing of the
stream waits to be applied.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from millstream.errors import ConditionError, MillstreamError, UnavailableError
from millstream.kv.core.copies.feed_effects import ChangeState, Read, Send, TakenOver, Undo, Wait
from millstream.kv.core.copies.record_exchange import AdoptRecords
from millstream.kv.core.copies.takeover_stream import TakingFeed
from simulators.simulation.link import Link, done

if TYPE_CHECKING:
    from simulators.simulation.node import Node

Late = Undo | Wait | ChangeState | TakenOver | AdoptRecords
"""Effects that the shell performs later."""


class Following:
    """One connection from a node to another."""

    def __init__(self, node: Node, source: Node) -> None:
        self.node, self.source, self.world = node, source, node.world
        name = f"{node.name}->{source.name}"
        self.feed = TakingFeed(node.bucket, name.encode(), node.name)
        self.out: list[bytes] = []
        self.todo: list[Late] = []
        self.takings: set[int] = set()
        self.wanted: set[int] = set()
        self.link = Link(source, self)
        node.following[source] = self
        node.bucket.subscribe_durable(self.feed.on_durable)

    def cut(self) -> None:
        """The connection is lost."""
        self.link.cut()
        self.node.following.pop(self.source, None)
        if not self.node.is_down:
            for p in sorted(self.takings):
                self._taken(p)
        self.node.bucket.unsubscribe(self.feed.on_durable)

    def follow(self, partition_id: int) -> None:
        self.wanted.add(partition_id)
        self.feed.follow(partition_id)

    def leave(self, partition_id: int) -> None:
        self.wanted.discard(partition_id)
        self.feed.leave(partition_id)

    def take_over(self, partition_id: int) -> None:
        """Take the partition over from the source, if the copy follows it."""
        if self.feed.is_streaming(partition_id) and partition_id not in self.takings:
            self.takings.add(partition_id)
            self.feed.take_over(partition_id)

    def is_busy(self, partition_id: int) -> bool:
        """Whether the copy has its stream, or is taking the partition over."""
        return self.feed.is_streaming(partition_id) or partition_id in self.takings

    # -- an end of a link

    def receive(self, data: bytes) -> int:
        before = self.feed._changes_total
        self.feed.receive(data, self.node.now_ms())
        self._step()
        return 1 + self.feed._changes_total - before

    def take_bytes(self) -> bytes:
        self._take_effects()
        data, self.out = b"".join(self.out), []
        return data

    def work(self) -> bool:
        """Something that the shell does may come to its end."""
        rng, reading = self.world.rng, self.node.reading
        self._take_effects()
        if reading.is_busy:
            reading.step(rng.randrange(8))
        if self.todo and rng.random() < 0.7:
            self._perform(self.todo.pop(rng.randrange(len(self.todo))))
        self._step()
        return bool(self.todo or reading.is_busy or self.feed.is_busy)

    def _step(self) -> None:
        while not self.link.is_cut and self.feed.step():
            pass

    def _take_effects(self) -> None:
        for effect in self.feed.take_effects():
            match effect:
                case Send(data):
                    self.out.append(data)
                case Read(absent):
                    assert absent.fetch(self._fetched)
                case _:
                    self.todo.append(effect)

    def _fetched(self, error: Exception | None) -> None:
        assert error is None, error
        if not self.link.is_cut:
            self.feed.on_read()

    def _perform(self, effect: Late) -> None:
        match effect:
            case Wait(p):
                self.feed.on_waited(p)
            case ChangeState():
                self._change(effect)
            case TakenOver(p):
                self._taken(p)
            case Undo():
                self._undo(effect)
            case AdoptRecords():
                self._adopt(effect)

    def _change(self, effect: ChangeState) -> None:
        failure, p = "", effect.partition_id
        try:
            done(self.node.moves.take_over(*effect))
        except MillstreamError as error:
            failure = str(error)
        self.world.trace(f"{self.node.copies[p].describe()} to take over {failure}")
        self.feed.on_state_changed(p, failure)

    def _adopt(self, effect: AdoptRecords) -> None:
        failure, adopt = "", self.node.bucket.adopt
        assert adopt is not None
        try:
            done(adopt(effect.records))
        except MillstreamError as error:
            failure = str(error)
        if not self.link.is_cut:
            self.feed.on_adopted(effect.records, failure)

    def _taken(self, p: int) -> None:
        """A take-over has ended, one way or the other."""
        self.takings.discard(p)
        with suppress(UnavailableError):  # a full disk: it stays pending, and follows
            done(self.node.moves.stand_back(p))

    def _undo(self, effect: Undo) -> None:
        p = effect.partition_id
        try:
            point = self.node.copies[p].undo(effect)
        except (ConditionError, UnavailableError):
            self.feed.on_not_undone(p)
            return
        copy = self.node.copies[p]
        self.world.trace(f"{copy.name} told by {self.source.name}: {effect.seqno}, at {point}")
        self.feed.on_undone(p, point)
