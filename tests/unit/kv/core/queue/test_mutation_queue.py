from __future__ import annotations

import random

from millstream.kv.core.queue.mutation_queue import HISTORY_SHARE, SLOT_BYTES, Entry, MutationQueue
from millstream.model.limits import QUEUE_SECONDS_MAX
from millstream.storage.core.new_keys import KeyPage

A, B, K, X, Y = (Entry(key, b"", b"lineage") for key in (b"a", b"b", b"k", b"x", b"y"))
BLOCK_BYTES = 1024 * (100 + SLOT_BYTES)


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
    assert queue.bytes_held == 4 + 4 * SLOT_BYTES, "seqno 0 has a slot, too"


def test_a_full_block_keeps_to_the_bytes_asked_for_also_with_what_a_hold_keeps() -> None:
    queue = MutationQueue(1023)
    queue.append(A, bytes(5000))
    for number in range(1023):
        queue.append(Entry(b"%d" % number, b"", b""), b"ten bytes.")
    assert queue.memory_slice(1023, 2047, 5995, 1024) == (
        [bytes(5000)] + [b"ten bytes."] * 99,
        1123,
    )
    frames, last = queue.memory_slice(1023, 2047, 20_000, 1024) or ([], 0)
    assert (len(frames), last) == (1024, 2047)
    hold = queue.open_hold(None)
    assert hold is not None
    queue.append(A, b"new", 1024, bytes(5000))
    assert queue.memory_slice(1023, 2048, 15_000, 1024) == ([b"ten bytes."] * 1023, 2047)
    held, last = queue.memory_slice(1023, 2047, 15_005, 1024) or ([], 0)
    assert (len(held), last, len(held[0])) == (1001, 2024, 5000)


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
    assert not queue.holds.kept
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
    assert queue.holds.bytes_kept == 0
    queue.check()


def test_slots_are_trimmed_although_their_frames_are_gone() -> None:
    queue = MutationQueue(0)
    for seqno in range(5000):
        queue.append(K, b"frame", seqno, b"frame" if seqno else b"")
    queue.freeze()
    queue.bytes_max = HISTORY_SHARE * SLOT_BYTES * 1500
    queue.trim(5000)
    assert queue.bytes_held <= SLOT_BYTES * 1500
    assert queue.floor == 4095, "blocks go whole"
    assert list(queue.blocks) == [4]
    assert frames_of(queue, queue.floor, 5000) == [b"frame"]
    queue.check()


def test_a_part_of_a_block_goes_if_its_frames_are_large() -> None:
    queue = MutationQueue(0, 1000 + 10 * SLOT_BYTES)
    for seqno in range(1, 10):
        queue.append(Entry(b"%d" % seqno, b"", b""), b"x" * 1000)
    queue.freeze()
    queue.append(A, b"a10")
    queue.trim(9)
    assert (queue.floor, queue.frame_bytes) == (9, 3)
    queue.append(A, b"a11", 10, b"a10")
    queue.append(B, b"b12", 3, b"x" * 1000)
    assert queue.freeze().previous_seqnos == [0, 3]
    queue.check()


def test_ever_so_many_increments_keep_one_item() -> None:
    queue = MutationQueue(0)
    queue.append_counter(K, b"0")
    hold = queue.open_hold(None)
    assert hold is not None
    for seqno in range(1, 200_000):
        queue.append_counter(K, b"%d" % seqno, seqno, b"%d" % (seqno - 1))
        if seqno % 60_000 == 0:
            assert len(queue.freeze().frames) == 1
    assert (len(queue.counters), len(queue.blocks), len(queue.holds.kept)) == (1, 0, 1)
    assert queue.frame_bytes == 6
    assert frames_of(queue, 0, 200_000) == [b"199999"]
    assert frames_of(queue, 0, 1) == [b"0"]
    assert queue.freeze() == ([200_000], [b"k"], [b"199999"], [180_001], [b"lineage"])
    queue.check()


def test_documents_and_counters_are_merged_by_seqno() -> None:
    queue = MutationQueue(0)
    queue.append(A, b"a1")
    queue.append_counter(B, b"b2")
    queue.append(K, b"k3")
    queue.append_counter(A, b"a4", 1, b"a1")
    queue.append(B, b"b5", 2, b"b2")
    queue.append_counter(X, b"x6")
    assert frames_of(queue, 0, 6) == [b"k3", b"a4", b"b5", b"x6"]
    assert queue.freeze()[:4] == (
        [3, 4, 5, 6], [b"k", b"a", b"b", b"x"], [b"k3", b"a4", b"b5", b"x6"], [0, 0, 0, 0]
    )  # fmt: skip
    queue.check()


def test_counters_that_take_a_whole_block_leave_no_document_in_a_wrong_slot() -> None:
    queue = MutationQueue(0)
    queue.append(A, b"a1")
    for seqno in range(2, 1026):
        queue.append_counter(K, b"k", seqno - 1 if seqno > 2 else 0, b"k" if seqno > 2 else b"")
    queue.append(B, b"b1026")
    assert [len(block.frames) for block in queue.blocks.values()] == [2, 3]
    assert frames_of(queue, 0, 1026) == [b"a1", b"k", b"b1026"]
    queue.check()


def test_a_hold_does_not_keep_slots_for_ever() -> None:
    """What the log has it serves; the one version that it never got is kept aside."""
    queue = MutationQueue(0, SLOT_BYTES * 4096)
    queue.append(K, b"first")
    opened = queue.open_hold(None)
    assert opened is not None
    for seqno in range(1, 100_000):
        queue.append(K, b"frame", seqno, b"frame" if seqno > 1 else b"first")
        if seqno % 1000 == 0:
            queue.freeze()
            queue.trim(seqno)
            assert queue.bytes_held <= queue.bytes_max
    assert queue.is_held(opened[0])
    assert queue.floor > 90_000
    assert queue.kept_below(0, 1, 1) == [(1, b"first")]


class Place:
    """A reader that stands still."""

    def __init__(self, seqno: int) -> None:
        self.sent = self.memory_after = seqno


def filled(queue: MutationQueue, count: int) -> None:
    for _ in range(count):
        queue.append(Entry(b"key", b"", b""), b"x" * 100)
    queue.freeze()
    queue.trim(queue.high_seqno)


def test_nobody_needs_more_than_a_part_of_the_bound() -> None:
    queue = MutationQueue(0, 40 * BLOCK_BYTES)
    filled(queue, 20 * 1024)
    assert queue.bytes_held <= queue.bytes_max // HISTORY_SHARE
    assert queue.floor % 1024 == 1023
    queue.check()


def test_a_slow_reader_keeps_what_it_needs_up_to_the_bound() -> None:
    queue = MutationQueue(0, 40 * BLOCK_BYTES)
    queue.readers.append(Place(5000))
    filled(queue, 30 * 1024)
    assert queue.floor == 5000, "everything above its place"
    filled(queue, 30 * 1024)
    assert queue.memory_slice(5000, 6000, 100, 100) is None, "it has to read the log"
    assert queue.bytes_max // 2 < queue.bytes_held <= queue.bytes_max
    queue.check()


def test_a_slow_reader_keeps_nothing_for_ever() -> None:
    queue = MutationQueue(0, 40 * BLOCK_BYTES)
    queue.age(1000.0)
    queue.readers.append(Place(0))
    filled(queue, 20 * 1024)
    for seconds in (QUEUE_SECONDS_MAX - 1, QUEUE_SECONDS_MAX):
        queue.age(1000.0 + seconds)
        assert queue.floor == 0
    queue.age(1000.0 + 2 * QUEUE_SECONDS_MAX)
    assert queue.bytes_held <= queue.bytes_max // HISTORY_SHARE
    queue.check()


def test_what_is_not_durable_stays_whatever_the_bound() -> None:
    queue = MutationQueue(0, 100)
    for _ in range(3000):
        queue.append(A, b"x" * 100)
    queue.freeze()
    queue.collect(0)
    assert queue.floor == 0
    queue.trim(2500)
    assert (queue.floor, queue.frame_bytes) == (2500, 50_000)


def test_going_back_forgets_everything() -> None:
    queue = MutationQueue(0)
    queue.append(A, b"a1")
    opened = queue.open_hold(None)
    assert opened is not None
    queue.append_counter(B, b"b2")
    queue.append(A, b"a3", 1, b"a1")
    queue.restart(1)
    assert not queue.is_held(opened[0])
    assert (queue.high_seqno, queue.floor, queue.bytes_held, queue.retained_bytes) == (1, 1, 0, 0)
    queue.append(A, b"a2", 1, b"a1")
    assert queue.freeze().previous_seqnos == [1]
    again = queue.open_hold(None)
    assert again is not None
    assert again[0] != opened[0], "numbers are not given twice"
    queue.check()


def test_below_the_floor_the_log_is_read() -> None:
    queue = MutationQueue(7)
    assert queue.memory_slice(6, 7, 1, 1) is None
    assert queue.memory_slice(7, 7, 1, 1) == ([], 7)


def test_only_keys_that_the_log_does_not_have_are_named() -> None:
    queue = MutationQueue(0)

    def unflushed(low: bytes = b"", high: bytes = b"z", purge_seqno: int = 0) -> list[bytes]:
        page = KeyPage(low, high, 9, descending=False)
        queue.add_unflushed_keys(page, purge_seqno)
        return page.keys

    queue.append(A, b"a1")
    queue.append_counter(X, b"x2")
    queue.append(B, b"b3")
    assert unflushed() == [b"a", b"b", b"x"]
    assert unflushed(b"b", b"x") == [b"b"]
    queue.freeze()
    queue.append(A, b"a4", 1, b"a1")
    queue.append_counter(X, b"x5", 2, b"x2")
    assert unflushed() == [b"a", b"b", b"x"], "what is replaced is not in the log yet"
    queue.trim(3)
    assert unflushed() == []
    assert unflushed(purge_seqno=1) == [b"a"], "what is replaced may have been purged"
    assert unflushed(purge_seqno=2) == [b"a", b"x"]
    queue.append(Y, b"y6")
    assert unflushed() == [b"y"]


def test_a_page_has_the_first_unflushed_keys_of_all_blocks_from_either_end() -> None:
    dice, queue = random.Random(7), MutationQueue(0)
    keys = [b"%04d" % number for number in range(5000)]
    dice.shuffle(keys)
    for key in keys:
        queue.append(Entry(key, b"", b""), b"frame")
    queue.freeze()
    queue.trim(2000)
    rest = sorted(keys[2000:])
    for low, high in ((b"", b"z"), (b"1234", b"1300"), (b"4990", b"z"), (b"5", b"z")):
        for descending in (False, True):
            page = KeyPage(low, high, 20, descending=descending)
            page.add([key for key in rest[:3] if low <= key < high])
            queue.add_unflushed_keys(page, 0)
            wanted = [key for key in rest if low <= key < high]
            assert page.keys == sorted(wanted, reverse=descending)[:20]


def test_a_block_whose_keys_are_out_of_a_pages_range_is_not_looked_into() -> None:
    queue = MutationQueue(0)
    queue.append(A, b"a1")
    queue.append(B, b"b2")
    queue.blocks[0].entries[2] = X  # nobody does
    page = KeyPage(b"c", b"z", 9, descending=False)
    queue.add_unflushed_keys(page, 0)
    assert page.keys == []
