from __future__ import annotations

import pytest

from millstream.kv.core.queue.blocks import BLOCK_SLOTS, CLOSED, Block, Entry, FrozenChanges
from millstream.model.limits import KEY_BYTES_MAX

pytestmark = pytest.mark.usefixtures("variant")
A, B, C = (Entry(key, b"", b"of " + key) for key in (b"a", b"b", b"c"))


def block_of(*slots: tuple[int, Entry, bytes, int]) -> Block:
    block = Block()
    for slot, *item in slots:
        entry, frame, previous = item
        block.put(slot, (entry, frame, previous))
    return block


def test_a_flush_takes_what_is_not_blank_with_its_seqnos() -> None:
    block = block_of((1, A, b"a1", 0), (2, B, b"b2", 7), (4, C, b"c4", 0))
    assert block.frozen(0, 1024) == FrozenChanges(
        [1025, 1026, 1028],
        [b"a", b"b", b"c"],
        [b"a1", b"b2", b"c4"],
        [0, 7, 0],
        [b"of a", b"of b", b"of c"],
    )
    assert block.frozen(2, 1026).seqnos == [1026, 1028]
    assert block.frozen(9, 1033).seqnos == []


def test_what_is_in_no_slot_takes_its_place_in_a_copy() -> None:
    block = block_of((0, A, b"a0", 0), (2, C, b"c2", 0))
    copy = block.copied(0)
    copy.put(1, (B, b"b1", 9))
    copy.put(5, (A, b"a5", 3))
    found = copy.frozen(0, 0)
    assert (found.seqnos, found.previous_seqnos) == ([0, 1, 2, 5], [0, 9, 0, 3])
    assert found.frames == [b"a0", b"b1", b"c2", b"a5"]
    assert block.frames == [b"a0", b"", b"c2"]


def test_a_range_is_blanked_and_says_how_much_it_held() -> None:
    block = block_of((0, A, b"a", 0), (1, B, b"bb", 0), (2, C, b"ccc", 0))
    assert block.blank(0, 2) == 3
    assert block.frames == [b"", b"", b"ccc"]
    block.entries, block.previous = [], []
    assert block.blank(2, 9) == 3
    assert block.entries == []


def test_only_a_full_block_is_known_to_be_small() -> None:
    block = Block()
    for slot in range(BLOCK_SLOTS - 1):
        block.put(slot, (A, b"12", 0))
    assert not block.is_within(1 << 20)
    block.put(BLOCK_SLOTS - 1, (A, b"1", 0))
    most = 2 * BLOCK_SLOTS - 1
    assert (block.is_within(most), block.is_within(most - 1)) == (True, False)
    block.blank(0, 9)
    assert not block.is_within(most - 1), "it was counted once"


def test_parts_are_joined_column_by_column() -> None:
    first = FrozenChanges([1], [b"a"], [b"x"], [0], [b"l"])
    second = FrozenChanges([5], [b"b"], [b"y"], [1], [b"m"])
    joined = FrozenChanges.joined([first, second])
    assert joined == ([1, 5], [b"a", b"b"], [b"x", b"y"], [0, 1], [b"l", b"m"])
    assert FrozenChanges.joined([]) == ([], [], [], [], [])
    assert FrozenChanges.joined([first]) is first


def test_a_closed_block_has_no_slot_left() -> None:
    assert len(CLOSED.frames) == len(CLOSED.entries) == len(CLOSED.previous) == BLOCK_SLOTS
    assert not any(CLOSED.frames)


def test_keys_that_may_have_no_other_record_are_those_that_the_log_lacks_or_has_purged() -> None:
    block = block_of((0, A, b"a", 0), (1, B, b"b", 7), (2, C, b"c", 12), (4, A, b"a", 9))
    every = (b"", b"z")
    assert block.unlogged_keys(0, 10, 0, *every) == [b"a", b"c"], "12 is not in the log"
    assert block.unlogged_keys(0, 10, 7, *every) == [b"a", b"b", b"c"], "7 may be purged"
    assert block.unlogged_keys(1, 10, 9, *every) == [b"b", b"c", b"a"]
    assert block.unlogged_keys(5, 10, 9, *every) == []
    block.blank(2, 3)
    assert block.unlogged_keys(0, 10, 0, *every) == [b"a"]


def test_a_range_ends_before_its_high_key() -> None:
    block = block_of((0, A, b"a", 0), (1, B, b"b", 0), (2, C, b"c", 0))
    assert block.unlogged_keys(0, 0, 0, b"a", b"c") == [b"a", b"b"]
    assert block.unlogged_keys(0, 0, 0, b"a\0", b"b") == []
    assert block.unlogged_keys(0, 0, 0, b"c", b"c\0") == [b"c"]


def test_a_block_finds_its_keys_whatever_was_blanked_or_filled_meanwhile() -> None:
    block = Block()
    block.pad(3)
    for number in range(8):
        block.append(Entry(b"m%d" % (number ^ 5), b"", b""), b"frame", 0)
    assert block.unlogged_keys(0, 0, 0, b"", b"m") == []
    assert block.unlogged_keys(0, 0, 0, b"m0", b"m1") == [b"m0"]
    assert block.unlogged_keys(0, 0, 0, b"m7", b"z") == [b"m7"]
    assert block.unlogged_keys(0, 0, 0, b"m8", b"z") == []
    block.blank(3, 4)
    assert block.unlogged_keys(0, 0, 0, b"m4", b"m6") == [b"m4"]
    block.put(0, (A, b"a", 0))
    block.put(20, (Entry(b"z", b"", b""), b"z", 0))
    assert block.unlogged_keys(0, 0, 0, b"", b"m") == [b"a"], "a copy may fill a blank slot"
    assert block.unlogged_keys(0, 0, 0, b"n", b"zz") == [b"z"]
    assert block.copied(4).unlogged_keys(0, 0, 0, b"n", b"zz") == [b"z"]
    block.blank(0, 21)
    assert block.unlogged_keys(0, 0, 0, b"", b"zz") == []


def test_a_block_knows_between_which_keys_all_of_its_are() -> None:
    block = Block()
    for key in (b"m", b"k", b"q", b"n"):
        block.append(Entry(key, b"", b""), b"frame", 0)
    assert (block.least, block.greatest) == (b"k", b"q")
    block.put(9, (A, b"a", 0))
    assert (block.least, block.greatest) == (b"a", b"q")
    block.put(5, (Entry(b"z", b"", b""), b"z", 0))
    copy = block.copied(4)
    assert (copy.least, copy.greatest) == (block.least, block.greatest) == (b"a", b"z")


@pytest.mark.parametrize("key", [b"", b"\xff" * KEY_BYTES_MAX])
def test_a_block_of_one_key_has_it(key: bytes) -> None:
    block = Block()
    block.append(Entry(key, b"", b""), b"frame", 0)
    assert block.least == block.greatest == key
    assert block.unlogged_keys(0, 0, 0, key, key + b"\0") == [key]
    assert block.unlogged_keys(0, 0, 0, b"", key) == []
    assert block.unlogged_keys(0, 0, 0, key + b"\0", key + b"\0\0") == []
