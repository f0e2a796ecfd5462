"""Hypothesis against the data engine: anything in any order, then faults, checked at every step.

The engine is `simulated_engine.SimulatedEngine`: the real parts over a simulated disk. Faults are
armed to strike at a later effect of the disk: the process is killed, power is lost, the disk is
full, a write or a sync fails.

`support.machines` runs the examples (`make soak` runs others).
"""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from support.kv.simulated_copies import ACTIVE, REPLICA
from support.kv.simulated_disk import FAULTS, Fault
from support.kv.simulated_engine import KEYS, PARTITIONS, SECOND, SimulatedEngine
from support.machines import run_rounds

EXAMPLES_A_ROUND = 50
STEPS = 50

KEY = st.sampled_from(KEYS)
PARTITION = st.integers(0, PARTITIONS - 1)
SEED = st.integers(0, 2**32 - 1)


class EngineMachine(RuleBasedStateMachine):
    example_count = 0
    engine: SimulatedEngine | None = None

    @initialize(seed=SEED, is_new=st.booleans())
    def begin(self, seed, is_new):
        EngineMachine.example_count += 1
        make = SimulatedEngine if is_new else SimulatedEngine.beside_the_end_of_a_block
        self.engine = make(seed)
        self.engine.start()

    # -- clients and readers

    @rule(p=PARTITION, key=KEY, op=st.integers(0, 11), n=st.integers(0, 5), is_odd=st.booleans())
    def write(self, p, key, op, n, is_odd):
        self.engine.write(p, key, op, n, is_odd=is_odd)

    @rule(p=PARTITION, seed=SEED, count=st.integers(2, 25))
    def burst(self, p, seed, count):
        self.engine.burst(p, seed, count)

    @rule(p=PARTITION, key=KEY)
    def get(self, p, key):
        self.engine.get(p, key)

    @rule(seconds=st.sampled_from((1, 5, 100, -3600)))
    def clock(self, seconds):
        self.engine.now += seconds * SECOND
        self.engine.monotonic += max(0, seconds) * SECOND

    @rule(p=PARTITION, n=st.integers(0, 5))
    def hold(self, p, n):
        self.engine.keep_hold(p, n)

    @precondition(lambda self: self.engine.holds)
    @rule(n=st.integers(0, 3))
    def release(self, n):
        self.engine.release(n)

    @rule(p=PARTITION, share=st.floats(0, 1), n=st.integers(0, 5))
    def read(self, p, share, n):
        self.engine.begin_read(p, int(self.engine.models[p].high * share), n)

    @precondition(lambda self: self.engine.reads)
    @rule(n=st.integers(0, 3), steps=st.integers(1, 5))
    def read_on(self, n, steps):
        """Beside the chunk that any reader takes after each step."""
        reads = self.engine.reads
        read = reads[n % len(reads)]
        for _ in range(steps):
            if read in reads:
                self.engine.step_read(read)

    @rule(p=PARTITION, is_whole=st.booleans())
    def lease(self, p, is_whole):
        self.engine.open_lease(p, is_whole=is_whole)

    @precondition(lambda self: self.engine.leases)
    @rule(n=st.integers(0, 9), share=st.floats(0, 1), is_last=st.booleans())
    def read_lease(self, n, share, is_last):
        engine = self.engine
        engine.read_lease(n, share)
        if is_last and engine.leases:
            (engine.release_lease if n % 2 else engine.renew_lease)(n)

    @rule(count=st.integers(1, 20))
    def follow(self, count):
        self.engine.follow(count)

    @precondition(lambda self: self.engine.line.consumer)
    @rule(window_bytes=st.sampled_from((1, 100, 1000, 100_000)))
    def hang_up(self, window_bytes):
        self.engine.line.disconnect()
        self.engine.line.window_bytes = window_bytes

    # -- copies

    @rule(p=PARTITION, n=st.integers(0, 9), is_hand_over=st.booleans())
    def move(self, p, n, is_hand_over):
        """A copy stays what it is most of the time."""
        states = self.engine.states_of(p)
        if n < len(states):
            move = partial(self.engine.set_state, p, states[n], is_hand_over=is_hand_over)
            self.engine.attempt(move)

    @rule(p=PARTITION, seed=SEED, count=st.integers(1, 9))
    def receive(self, p, seed, count):
        """A copy that was active stands down for it now and then."""
        engine = self.engine
        if engine.models[p].state is ACTIVE and seed % 3 == 0:
            engine.attempt(lambda: engine.set_state(p, REPLICA))
        if engine.is_alive:
            engine.receive(p, seed, count)

    # -- memory and disk

    @rule(p=PARTITION, bytes_max=st.sampled_from((0, 300, 2000, 1 << 20)))
    def bound_memory(self, p, bytes_max):
        self.engine.bound_memory(p, bytes_max)

    @rule(share=st.integers(0, 3), steps=st.integers(2, 9), is_flushed=st.booleans())
    def evict(self, share, steps, is_flushed):
        """Only what is durable goes: half of the time that is all."""
        if is_flushed:
            self.engine.attempt(self.engine.flush)
        if self.engine.is_alive:
            self.engine.evict(share, steps)

    @precondition(lambda self: self.engine.reading.is_busy)
    @rule(n=st.integers(0, 9))
    def read_back(self, n):
        self.engine.reading.step(n)

    @precondition(lambda self: self.engine.commit is None)
    @rule()
    def freeze(self):
        self.engine.freeze()

    @precondition(lambda self: self.engine.commit and not self.engine.commit.is_appended)
    @rule()
    def append(self):
        self.engine.attempt(self.engine.append)

    @precondition(lambda self: self.engine.commit and self.engine.commit.is_appended)
    @rule()
    def absorb(self):
        self.engine.absorb()

    @rule()
    def flush(self):
        self.engine.attempt(self.engine.flush)

    @precondition(lambda self: self.engine.applying is None)
    @rule()
    def take_by_id(self):
        self.engine.take_by_id()

    @precondition(lambda self: self.engine.applying is not None)
    @rule(steps=st.integers(1, 8))
    def step_by_id(self, steps):
        self.engine.attempt(lambda: self.engine.step_by_id(steps))

    @rule(p=PARTITION, history_share=st.integers(0, 4), purge_share=st.integers(0, 4))
    def move_low_points(self, p, history_share, purge_share):
        self.engine.attempt(lambda: self.engine.move_low_points(p, history_share, purge_share))

    @rule(seed=SEED, steps=st.integers(1, 30))
    def compact(self, seed, steps):
        self.engine.attempt(lambda: self.engine.compact(seed, steps))

    @rule(p=PARTITION, seed=SEED)
    def tidy(self, p, seed):
        self.engine.attempt(lambda: self.engine.tidy(p, seed))

    # -- ends

    @rule(kind=st.sampled_from(FAULTS), left=st.integers(0, 12))
    def arm(self, kind, left):
        self.engine.fault = Fault(kind, left)

    @rule(n=st.integers(0, 11), p=PARTITION, share=st.floats(0, 1))
    def end(self, n, p, share):
        """One rule, so that most steps are no ends."""
        engine = self.engine
        if n <= 1:
            engine.die(is_power_lost=n == 1)
        elif n <= 3:
            engine.attempt(engine.stop)
            if n == 3 and not engine.is_alive:
                engine.copy()
        elif n == 4:
            engine.attempt(lambda: engine.roll_back(p, int(engine.models[p].high * share)))

    # -- checks

    @invariant()
    def holds_true(self):
        engine = self.engine
        if engine is not None:
            if not engine.is_alive:
                engine.start()
            engine.check()
            engine.check_leases()

    def teardown(self):
        if self.engine is not None:
            self.engine.finish()


@pytest.mark.timeout(0)
def test_no_schedule_breaks_the_engine(record_property):
    run_rounds(EngineMachine, STEPS, EXAMPLES_A_ROUND, record_property)
