"""Copies that take over from their source: real stores on both sides, everything cut anywhere."""

from __future__ import annotations

import random

import pytest

from millstream.kv.core.copies.feed_effects import TakenOver
from millstream.model.partitions import PartitionState
from millstream.wire.mcbp import Opcode, Status, request, response
from support.budget import budget
from support.kv.feed_rig import ACTIVE, REPLICA, Rig

PENDING, DEAD = PartitionState.PENDING, PartitionState.DEAD


class Taking(Rig):
    """Partition 0 is being taken over; a client writes at whoever is active."""

    def __init__(self, seed: int, *, count: int = 1) -> None:
        super().__init__(random.Random(seed), count)
        self.steps = 0

    def write_somewhere(self) -> None:
        if self.source.bucket.partitions[0].state is ACTIVE:
            self.write(0)

    def step(self) -> None:
        """One thing happens: a message, a move of either copy, a write, a flush, a pause."""
        self.steps += 1
        self.check_states()
        if self.rng.random() < 0.15 and self.steps < 150:
            self.write_somewhere()
        elif self.changes and self.rng.random() < 0.5:
            self.change_state()
        elif self.undos:
            self.undo()
        elif self.waits and self.rng.random() < 0.3:
            self.wait()
        elif self.rng.random() < 0.1:
            self.flush_copy()
        elif self.host.producer is not None and self.rng.random() < 0.3:
            self.stop_source()
        else:
            self.exchange()
        self.check_states()

    def check_states(self) -> None:
        source, copy = self.source.bucket.partitions[0], self.copy.bucket.partitions[0]
        assert not (source.state is ACTIVE and copy.state is ACTIVE)
        if copy.state is ACTIVE:
            assert source.state is not ACTIVE
            assert self.copy.documents(0) == self.replay(0, 1 << 60)

    def states(self) -> tuple[PartitionState, PartitionState]:
        return self.source.bucket.partitions[0].state, self.copy.bucket.partitions[0].state

    def run(self, steps: int = 5000) -> None:
        while not self.taken_over and self.steps < steps:
            self.step()


def begun(seed: int = 1) -> Taking:
    rig = Taking(seed)
    for _ in range(20):
        rig.write(0)
    rig.settle()
    rig.feed.take_over(0)
    rig.carry_out()
    return rig


@pytest.mark.parametrize("seed", range(budget(20)))
def test_a_copy_becomes_active_in_the_same_history_with_all_that_was_accepted(seed: int) -> None:
    rig = begun(seed)
    log = rig.source.bucket.partitions[0].failover_log
    rig.run()
    assert rig.taken_over == [TakenOver(0, "")]
    assert rig.states() == (DEAD, ACTIVE)
    copy = rig.copy.bucket.partitions[0]
    assert copy.failover_log == log
    assert copy.high_seqno == rig.source.bucket.partitions[0].high_seqno
    for _ in range(50):
        rig.exchange()
    assert rig.source.bucket.begin_take_over(0), "nobody takes it over any more"


@pytest.mark.parametrize("seed", range(2))
def test_a_line_that_breaks_anywhere_leaves_one_active_copy_at_most(seed: int) -> None:
    whole = begun(seed)
    whole.run()
    seen: set[tuple[PartitionState, PartitionState]] = set()
    for steps in range(seed, whole.steps + 2, 2):
        rig = begun(seed)
        rig.run(steps)
        if rig.changes and rig.rng.random() < 0.5:  # what has begun goes on
            rig.change_state()
        rig.connect()
        rig.check_states()
        seen.add(rig.states())
        if rig.states()[0] is ACTIVE:
            rig.write_somewhere()
            assert rig.source.documents(0) == rig.replay(0, 1 << 60)
    assert seen >= {(ACTIVE, REPLICA), (ACTIVE, PENDING), (DEAD, PENDING), (DEAD, ACTIVE)}


@pytest.mark.parametrize("is_source", [True, False])
def test_a_node_killed_anywhere_leaves_one_active_copy_at_most(is_source: bool) -> None:
    whole = begun()
    whole.run()
    for steps in range(0, whole.steps, 2):
        rig = begun()
        rig.run(steps)
        before = rig.states()
        (rig.source if is_source else rig.copy).crash()
        source, copy = rig.states()
        assert not (source is ACTIVE and copy is ACTIVE)
        if not is_source:
            assert source is before[0]
        if DEAD in before[:1]:
            assert source is DEAD
        if copy is ACTIVE:
            assert rig.copy.documents(0) == rig.replay(0, 1 << 60)


def test_a_copy_that_rests_takes_over_at_once() -> None:
    rig = Taking(3)
    rig.feed.leave(0)
    for _ in range(50):
        rig.exchange()
    rig.feed.follow(0)
    rig.feed.take_over(0)
    rig.feed.take_over(0)
    rig.carry_out()
    rig.run()
    assert rig.taken_over == [TakenOver(0, "")]


def test_a_source_that_was_rolled_back_has_the_copy_undone_first() -> None:
    rig = Taking(4)
    rig.write(0)
    rig.source.flush()
    rig.write(0)
    rig.write(0)
    rig.settle()
    rig.crash_source()
    rig.feed.take_over(0)
    rig.carry_out()
    rig.run()
    assert rig.taken_over == [TakenOver(0, "")]


def refused(rig: Taking) -> str:
    rig.run()
    (ended,) = rig.taken_over
    assert ended.partition_id == 0
    assert ended.failure
    return ended.failure


def test_a_source_that_refuses() -> None:
    rig = Taking(5)
    rig.settle()
    assert rig.source.bucket.begin_take_over(0)
    rig.feed.take_over(0)
    rig.carry_out()
    assert "status 0x85" in refused(rig)
    rig.settle()
    assert rig.feed.is_streaming(0), "it follows on"
    assert rig.states() == (ACTIVE, REPLICA)


def test_a_copy_that_cannot_become_what_is_wanted() -> None:
    for after in (0, 1):
        rig = begun()
        while len(rig.changes) == 0:
            rig.step()
        if after:
            rig.change_state()
            while len(rig.changes) == 0:
                rig.step()
        (change,) = rig.changes
        rig.changes.clear()
        rig.feed.on_state_changed(0, "the disk is full")
        assert change.state is (ACTIVE if after else PENDING)
        assert refused(rig) == "the disk is full"
        assert rig.states()[0] is (DEAD if after else ACTIVE)


def test_a_promise_between_the_two_states_ends_it() -> None:
    rig = begun()
    while not rig.changes:
        rig.step()
    rig.change_state()
    rig.copy.promise(0, rig.copy.bucket.partitions[0].last_branch + 1)
    while not rig.taken_over:
        rig.step()
        assert rig.changes == [], "it does not even try"
    assert rig.states()[1] is PENDING
    assert rig.taken_over[0].failure


def test_a_take_over_that_is_given_up() -> None:
    for steps in range(0, 60, 3):
        rig = begun()
        rig.run(steps)
        if rig.taken_over:
            break
        rig.feed.give_up_taking(0)
        rig.carry_out()
        rig.run()
        (ended,) = rig.taken_over
        if rig.states()[1] is ACTIVE:
            assert ended.failure == ""
        else:
            assert "given up" in ended.failure
    rig.feed.give_up_taking(0)


def test_a_copy_that_is_no_longer_wanted_takes_nothing_over() -> None:
    rig = begun()
    rig.feed.leave(0)
    assert refused(rig)
    rig.settle()
    assert not rig.feed.is_streaming(0)


def test_states_that_nobody_should_ask_for_are_refused() -> None:
    for state in (DEAD, REPLICA):
        rig = begun()
        while not rig.changes:
            rig.step()
        rig.change_state()
        rig.to_copy = b""
        extras = state.to_bytes(1, "big")
        rig.feed.receive(request(Opcode.DCP_SET_VBUCKET_STATE, extras=extras), 0)
        rig.feed.step()
        rig.to_source = b""
        rig.carry_out()
        answer = response(Opcode.DCP_SET_VBUCKET_STATE, Status.ETMPFAIL, 0)
        assert answer in rig.to_source
        assert rig.changes == []


def test_a_state_given_to_a_stream_that_is_gone_is_told_to_nobody() -> None:
    rig = begun()
    while not rig.changes:
        rig.step()
    (change,) = rig.changes
    assert change.state is PENDING
    rig.connect()
    rig.feed.on_state_changed(0, "")
    rig.settle()
    assert rig.taken_over == []
