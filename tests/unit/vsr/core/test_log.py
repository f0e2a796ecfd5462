"""A log knows its hashes, its holes and its end."""

import pytest

from millstream.vsr.core.entries import GENESIS
from millstream.vsr.core.log import Log, Mark, size_of
from support.coordination.coordination_logs import chained, log_of


def test_an_empty_log_ends_where_every_group_begins() -> None:
    log = Log()
    assert (log.op_lsn, log.head, log.last, log.whole_lsn) == (0, GENESIS, None, 0)
    assert log.hash_at(0) == GENESIS.hash
    assert log.hash_at(1) is None


def test_entries_are_found_by_lsn() -> None:
    log, entries = log_of("abc"), chained("abc")
    assert [log.entry_at(lsn) for lsn in range(5)] == [None, *entries, None]
    assert log.hash_at(3) == entries[2].header.hash == log.head.hash
    assert log.last == entries[2].header


def test_some_at_once_are_taken_as_one_after_the_other() -> None:
    log, one_by_one, entries = log_of("ab"), log_of("abcd"), chained("abcd")
    log.extend(entries[2:], entries[3].header.link)
    assert vars(log) == vars(one_by_one)
    assert [log.entry_at(lsn) for lsn in range(1, 5)] == entries


def test_what_does_not_follow_is_not_taken() -> None:
    log = log_of("ab")
    with pytest.raises(AssertionError):
        log.append(chained("xyz")[2])


def test_a_hole_has_a_hash_and_no_entry() -> None:
    log = log_of("abc", damaged=(2,))
    assert (log.entry_at(2), log.whole_lsn, list(log.holes)) == (None, 1, [2])
    assert log.marks(1) == (
        Mark(chained("abc")[1].header.hash, False), Mark(chained("abc")[2].header.hash, True),
    )  # fmt: skip


def test_a_new_end_takes_holes_with_it() -> None:
    log = log_of("abcd", damaged=(3,))
    other = chained("abxy")
    log.replace_above(2, other[2:])
    assert (log.op_lsn, log.head.hash, list(log.holes)) == (4, other[3].header.hash, [])


def test_entries_are_given_up_to_a_hole_or_a_limit() -> None:
    log = log_of("abcdef", damaged=(4,))
    size = size_of(chained("a")[0])
    assert [entry.lsn for entry in log.after(0, 9, 9 * size)] == [1, 2, 3]
    assert [entry.lsn for entry in log.after(0, 2, 9 * size)] == [1, 2]
    assert [entry.lsn for entry in log.after(0, 9, 1)] == [1]
    assert [entry.lsn for entry in log.ending_at(6, 0, 9, 9 * size)] == [5, 6]
    assert [entry.lsn for entry in log.ending_at(3, 1, 9, 9 * size)] == [2, 3]
    assert [entry.lsn for entry in log.ending_at(3, 0, 9, 1)] == [3]
    assert log.ending_at(4, 0, 9, 9 * size) == []


def test_a_dropped_prefix_is_gone_and_its_end_is_known() -> None:
    log = log_of("abcd", damaged=(1,))
    log.drop_prefix(2)
    assert (log.base.lsn, log.op_lsn, log.entry_at(2), list(log.holes)) == (2, 4, None, [])
    assert log.hash_at(2) == chained("ab")[1].header.hash
    assert log.entry_at(3) == chained("abcd")[2]
    assert log.hash_at(1) is None
    log.begin_at(GENESIS)
    assert log.op_lsn == 0
