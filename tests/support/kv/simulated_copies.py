"""States of the copies of a simulated bucket, and the sources that they follow.

A move is made as `kv.aio.copies` makes it: nothing under way, everything flushed, durable, then in
memory. What a copy follows is a model of its own: at first all that the copy had, then a history
that goes on there, under new names now and then. What it sends is computed from where the copy
stands: of a snapshot the newest of each key, so a copy that came back inside of one gets the rest.

Invariants, each an assertion:
1. A promotion begins a history of a larger branch at the last complete end, and keeps what the
   copy has above it; low points come down to it. A hand-over changes no history.
2. A copy that comes back holds a first part of what it was sent, whole up to the mark, and knows
   where the snapshot ends that it is inside of.

Elsewhere: several real copies that follow each other (`simulators/simulation`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from millstream.errors import UnavailableError
from millstream.kv.core.copies.moves import activate, rename
from millstream.kv.core.partition.states import FOLLOWING, MOVES, Move, move_between
from millstream.model.partitions import PartitionState
from millstream.model.position import FailoverEntry
from millstream.storage.core.store import RecoveredPartition
from support.http.revised_documents import signature
from support.kv.engine_checks import KEYS, EngineChecks
from support.kv.engine_model import SECOND, PartitionModel, side_bytes, with_revision
from support.kv.simulated_reading import SimulatedReading

ACTIVE, REPLICA = PartitionState.ACTIVE, PartitionState.REPLICA
Outcome = tuple[int, int, int]
"""(mark, history seqno, purge seqno) of a partition that came back."""


class EngineCopies(EngineChecks):
    """The part of a simulated engine that is about copies."""

    now: int
    reading: SimulatedReading
    sources: dict[int, PartitionModel]
    """What the copies that are not active follow; not of this process."""
    following: set[int]
    """Those that have asked their source since it, or they, became another."""
    undecided_states: dict[int, PartitionState]
    """What a move that was cut short may have made of a copy."""

    settle: Callable[[], None]
    _new_entry: Callable[[int, int], FailoverEntry]
    _undecided: Callable[..., AbstractContextManager[None]]

    # -- moves

    def states_of(self, p: int) -> list[PartitionState]:
        """Return what a copy may become, but absent."""
        kept = (Move.NONE, Move.REMOVE)
        return [state for state, move in MOVES[self.models[p].state].items() if move not in kept]

    def set_state(self, p: int, state: PartitionState, *, is_hand_over: bool = False) -> None:
        """One of these; a hand-over only of a copy that has everything."""
        model, partition = self.models[p], self.bucket.partitions[p]
        move = move_between(model.state, state)
        partition.suspend()
        try:
            self.settle()
            with self._maybe(p, state):
                if move is not Move.ACTIVATE:
                    self._rename(p, state)
                elif not is_hand_over:
                    self._promote(p)
                elif model.high == model.shown == self.sources[p].high:
                    self._hand_over(p)
        finally:
            partition.resume()

    @contextmanager
    def _maybe(self, p: int, state: PartitionState) -> Iterator[None]:
        """If it is cut short, the copy comes back in the one state or the other."""
        self.undecided_states[p] = state
        try:
            yield
        except UnavailableError as error:
            if error.code == "disk_full":
                del self.undecided_states[p]
            raise
        del self.undecided_states[p]

    def _outcome(self, p: int, mark: int) -> Outcome:
        model = self.models[p]
        return mark, min(model.history_seqno, mark), min(model.purge_seqno, mark)

    def _rename(self, p: int, state: PartitionState) -> None:
        model = self.models[p]
        with self._undecided(p, self._outcome(p, model.acknowledged)):
            self.store.set_state(p, state)
        if model.state is ACTIVE:
            self._stand_down(p)
        rename(self.bucket.partitions[p], state)
        model.state = state

    def _stand_down(self, p: int) -> None:
        model = self.models[p]
        model.follow()
        source = self.sources[p] = model.copy()
        source.state, source.complete_end = ACTIVE, None
        source.history_seqno = source.purge_seqno = 0

    def _promote(self, p: int) -> None:
        model, partition = self.models[p], self.bucket.partitions[p]
        mark, top = model.shown, model.high
        before, last_branch = self._outcome(p, mark), partition.last_branch
        with self._undecided(p, before, (top, *before[1:])):
            found = self.store.activate(p)
        activate(partition, found)
        self._check_promoted(found, (top, *before[1:]), mark, last_branch)
        _, model.history_seqno, model.purge_seqno = before
        self._became_active(p)
        model.begin(found.failover_log[0])
        model.marks.add(top)
        model.acknowledged = top

    @staticmethod
    def _check_promoted(
        found: RecoveredPartition, right: Outcome, mark: int, last_branch: int
    ) -> None:
        entry = found.failover_log[0]
        assert entry.seqno == mark, f"{entry} is not at the last complete end {mark}"
        assert entry.branch > last_branch
        assert (found.high_seqno, found.history_seqno, found.purge_seqno) == right
        assert found.state is ACTIVE

    def _became_active(self, p: int) -> None:
        model = self.models[p]
        model.activate(self.sources.pop(p))
        model.state = ACTIVE
        self.following.discard(p)

    def _hand_over(self, p: int) -> None:
        model, partition = self.models[p], self.bucket.partitions[p]
        with self._undecided(p, self._outcome(p, model.acknowledged)):
            self.store.set_state(p, ACTIVE)
        activate(partition, self.store.partition(p))
        model.take_over(self.sources.pop(p))
        model.state = ACTIVE
        self.following.discard(p)

    # -- following

    def receive(self, p: int, seed: int, count: int) -> None:
        """The next messages of the source."""
        model, partition = self.models[p], self.bucket.partitions[p]
        replica = partition.replica
        if replica is None or model.state not in FOLLOWING:
            return
        source, rng = self.sources[p], random.Random(seed)
        if p not in self.following or rng.random() < 0.2:
            self._ask_source(p, is_new=rng.random() < 0.3)
        for _ in range(count):
            if model.high == model.range_end:
                self._write_at(source, rng)
                model.is_told_of(rng.randint(model.high + 1, source.high))
                replica.apply_marker(model.high + 1, model.range_end)
            made = source.as_of(model.range_end, model.high)[0]
            side = side_bytes(made)
            self.reading.wait_for(lambda m=made, x=side: replica.apply_change(m.frame, x))
            model.receive(made)
            assert replica.complete_end == model.shown
            assert replica.position[1:4] == (model.high, model.shown, model.range_end)

    def _ask_source(self, p: int, *, is_new: bool) -> None:
        """Follow it from here on; `is_new`: it is another copy, in a history of its own."""
        source, partition = self.sources[p], self.bucket.partitions[p]
        newest = source.entries[-1].branch
        if is_new or newest < partition.last_branch:
            source.begin(self._new_entry(source.high, max(newest, partition.last_branch)))
        assert partition.replica is not None
        partition.replica.on_opened(tuple(reversed(source.entries)), 0)
        self.models[p].entries = list(source.entries)
        self.following.add(p)

    def _write_at(self, source: PartitionModel, rng: random.Random) -> None:
        for _ in range(rng.randint(1, 5)):
            key, n = rng.choice(KEYS), rng.randrange(6)
            chosen = rng.random()
            if chosen < 0.3:
                source.delete(key, 0, self.now)
            elif chosen < 0.5:
                source.live(key, self.now)
                made, rev = source.newest(key), f"{n + 1}-{signature(source.high)}"
                packed = with_revision(made, rev, b'{"n":1}', is_deleted=n == 2)
                source.revise(key, packed, self.now)
            else:
                expiry = self.now // SECOND + n if n > 3 else 0
                source.put(key, b"%d" % n * (1 + 40 * (n == 5)), n, expiry, 0, n & 1, self.now)
        source.put(rng.choice(KEYS), b"last", 0, 0, 0, 0, self.now)

    # -- a start

    def check_copy(self, p: int, found: RecoveredPartition) -> None:
        """What a copy came back as: its state, its top and its range; the model follows."""
        model, undecided = self.models[p], self.undecided_states.get(p)
        assert found.state in (model.state, undecided)
        if model.state is ACTIVE and found.state is not ACTIVE:
            self._stand_down(p)
        elif model.state is not ACTIVE and found.state is ACTIVE:
            self._became_active(p)
        model.state = found.state
        mark, top = found.high_seqno, found.top_seqno
        if model.complete_end is None:
            assert top == mark
            return
        if self.store.was_clean_stop:
            assert top == model.high
        assert mark <= top <= model.high
        if top > mark:
            assert model.history[top - 1] is not None, f"p{p}: {top} was never sent"
            assert found.range_end in model.ends_beyond(top), f"p{p}: {top} in {found.range_end}"
        model.cut(top)
        model.complete_end = mark
        model.range_end = found.range_end if top > mark else top
        self.following.discard(p)
