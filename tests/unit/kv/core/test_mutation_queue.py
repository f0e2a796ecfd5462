from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st
from log_double import NOW, LogDouble, items_of, new_partition

from millstream.kv.core import mutation_queue
from millstream.kv.core.mutation_queue import HELD_FACTOR_MAX, SLOT_BYTES, Entry, MutationQueue
from millstream.wire.frames import change_of, seqno_of

A, B, K, X, Y = (Entry(key, b"", b"lineage") for key in (b"a", b"b", b"k", b"x", b"y"))


def frames_of(queue: MutationQueue, after: int, at: int) -> list[bytes]:
    found: list[bytes] = []
    while after < at:
        chunk = queue.memory_slice(after, at, 10, 3)
        assert chunk is not None
        frames, after = chunk
        found += frames
    return found


def test_a_slice_skips_what_was_superseded() -> None:
    queue = MutationQueue(0)
    queue.append(A, b"a1")
    queue.append(B, b"b2")
    queue.append(A, b"a3", 1, b"a1")
    assert frames_of(queue, 0, 3) == [b"b2", b"a3"]
    assert queue.bytes_held == 4 + 3 * SLOT_BYTES


def test_a_hold_still_sees_what_was_superseded_after_it() -> None:
    queue = MutationQueue(0)
    queue.append(A, b"a1")
    opened = queue.open_hold(None)
    assert opened is not None
    hold, at = opened
    queue.append(A, b"a2", 1, b"a1")
    assert frames_of(queue, 0, at) == [b"a1"]
    assert frames_of(queue, 0, 2) == [b"a2"]
    queue.release_hold(hold)
    assert not queue.retained
    assert queue.open_hold(1) is None


def test_previous_names_only_what_a_flush_took() -> None:
    queue = MutationQueue(0)
    queue.append(A, b"a1")
    assert queue.freeze() == ([1], [b"a"], [b"a1"], [0], [b"lineage"])
    queue.append(A, b"a2", 1, b"a1")
    queue.append(A, b"a3", 2, b"a2")
    assert queue.freeze() == ([3], [b"a"], [b"a3"], [1], [b"lineage"]), "a2 never reached the log"


def test_holds_are_lost_rather_than_memory() -> None:
    queue = MutationQueue(0, 10)
    queue.append(X, b"x" * 11)
    opened = queue.open_hold(None)
    assert opened is not None
    queue.append(Y, b"y", 1, b"x" * 11)
    assert not queue.is_held(opened[0])
    assert queue.retained_bytes == 0
    queue.check()


def test_slots_are_trimmed_although_their_frames_are_gone() -> None:
    queue = MutationQueue(0)
    for seqno in range(5000):
        queue.append(K, b"frame", seqno, b"frame" if seqno else b"")
    queue.freeze()
    queue.bytes_max = SLOT_BYTES * 1000
    queue.trim(5000)
    assert queue.bytes_held <= SLOT_BYTES * 1000
    assert queue.memory_slice(queue.floor, 5000, 100, 5000) == ([b"frame"], 5000)
    queue.check()


def test_a_hold_does_not_keep_slots_for_ever() -> None:
    queue = MutationQueue(0, SLOT_BYTES * 1000)
    queue.append(K, b"frame")
    opened = queue.open_hold(None)
    assert opened is not None
    for seqno in range(1, 100_000):
        queue.append(K, b"frame", seqno, b"frame")
        if seqno % 1000 == 0:
            queue.freeze()
            queue.trim(seqno)
            assert queue.bytes_held <= (HELD_FACTOR_MAX + 2) * queue.bytes_max
    assert not queue.is_held(opened[0])


def test_below_the_floor_the_log_is_read() -> None:
    queue = MutationQueue(7)
    assert queue.memory_slice(6, 7, 1, 1) is None
    assert queue.memory_slice(7, 7, 1, 1) == ([], 7)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32))
def test_reading_as_of_a_hold_equals_the_history(seed: int) -> None:
    """Random writes, flushes, trims and holds: every hold reads exactly its past state."""
    rng = random.Random(seed)
    log = LogDouble()
    partition = new_partition(log=log)
    history: list[tuple[bytes, bytes]] = []  # (key, frame), seqno n at n - 1
    holds = []
    trim_slots, mutation_queue._TRIM_SLOTS_MIN = mutation_queue._TRIM_SLOTS_MIN, 1  # type: ignore[misc]
    try:
        for step in range(rng.randint(5, 80)):
            key = bytes([97 + rng.randrange(4)])
            action = rng.random()
            if action < 0.6:
                frame = partition.put(key, b"%d" % step, 0, 0, 0, 0, NOW + step)
                assert isinstance(frame, bytes)
                history.append((key, frame))
            elif action < 0.7:
                deleted = partition.delete(key, 0, NOW + step)
                if isinstance(deleted, bytes):
                    history.append((key, deleted))
            elif action < 0.8:
                log.items += items_of(partition.freeze())
                partition.queue.bytes_max = rng.choice((500, 1500, 5000))
                partition.persisted(partition.queue.frozen_seqno)
            elif action < 0.9:
                hold = partition.open_hold(rng.choice([None, *(h.at for h in holds)]))
                assert hold is not None
                holds.append(hold)
            elif holds:
                partition.release_hold(holds.pop(rng.randrange(len(holds))))
            partition.queue.check()
            holds = [hold for hold in holds if partition.is_held(hold)]
            for hold in holds:
                check_as_of(partition, history, hold.at, rng.randint(0, hold.at))
    finally:
        mutation_queue._TRIM_SLOTS_MIN = trim_slots  # type: ignore[misc]


def check_as_of(partition, history, at: int, after: int) -> None:  # type: ignore[no-untyped-def]
    newest = dict(history[:at])
    expected = sorted((f for f in newest.values() if seqno_of(f) > after), key=seqno_of)
    found: list[bytes] = []
    while after < at:
        chunk = partition.memory_slice(after, at, 60, 2)
        if chunk is not None:
            found += chunk[0]
            after = chunk[1]
            continue
        for frames, last in partition.backfill(after, at):
            found += frames
            after = last
    assert [change_of(f) for f in found] == [change_of(f) for f in expected]
