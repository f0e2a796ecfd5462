import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.model.limits import UINT64_MAX
from millstream.model.partitions import PartitionState
from millstream.model.position import FailoverEntry
from millstream.storage.core.records import LowPoints, Owed
from millstream.storage.core.summary import Kill, PartitionSummary

kills = st.lists(st.tuples(st.integers(1, 50), st.integers(0, 50)), max_size=12)


def fields(summary):
    return [getattr(summary, name) for name in PartitionSummary.__slots__]


def test_a_rollback_kills_what_is_above_it():
    summary = PartitionSummary()
    summary.on_entry(FailoverEntry(1, 0, 10))
    summary.on_change(5, is_mark=True)
    summary.on_entry(FailoverEntry(2, 5, 11))
    summary.on_change(7, is_mark=True)
    summary.on_change(8, is_mark=False)
    summary.on_low_points(LowPoints(6, 2))
    assert (summary.mark, summary.top) == (7, 8)
    summary.on_rollback(3, 4)
    assert (summary.mark, summary.top, summary.low_points) == (4, 4, LowPoints(0, 0))
    assert summary.failover_log == (FailoverEntry(1, 0, 10),)
    assert summary.last_branch == 11
    assert (summary.limit(2), summary.limit(3)) == (4, UINT64_MAX)


def test_a_mark_whose_change_is_gone_counts():
    summary = PartitionSummary()
    summary.on_change(3, is_mark=False)
    summary.on_mark(9)
    assert (summary.mark, summary.top) == (9, 9)


def test_a_rollback_leaves_the_oldest_entry_and_ends_the_snapshot():
    summary = PartitionSummary()
    log = (FailoverEntry(2, 9, 11), FailoverEntry(1, 6, 10))
    summary.on_history(log)
    summary.range_end = 20
    summary.on_change(14, is_mark=False)
    summary.on_rollback(1, 3)
    assert (summary.failover_log, summary.range_end, summary.top) == (log[1:], 0, 3)
    assert summary.last_branch == 11


def test_a_new_branch_ends_the_snapshot_of_the_source_before():
    summary = PartitionSummary()
    summary.range_end = 20
    summary.on_entry(FailoverEntry(1, 6, 10))
    assert summary.range_end == 0


def test_the_last_branch_only_grows():
    summary = PartitionSummary()
    for branch, right in ((5, 5), (3, 5), (9, 9)):
        summary.on_branch(branch)
        assert summary.last_branch == right
    summary.on_history((FailoverEntry(1, 0, 7),))
    assert summary.last_branch == 9
    summary.on_history((FailoverEntry(2, 5, 12), FailoverEntry(1, 0, 7)))
    assert summary.last_branch == 12


@given(kills)
def test_the_limit_is_the_lowest_target_of_later_segments(pairs):
    summary = PartitionSummary()
    pairs.sort(key=lambda pair: pair[0])
    for segment, seqno in pairs:
        summary.on_rollback(segment, seqno)
    for number in range(52):
        right = min((seqno for segment, seqno in pairs if segment > number), default=UINT64_MAX)
        assert summary.limit(number) == right


@given(kills, st.integers(0, 2**48), st.integers(0, 30), st.sampled_from(PartitionState))
def test_summaries_are_read_back(pairs, seqno, entries, state):
    summary = PartitionSummary()
    summary.state = state
    summary.range_end = seqno + 1
    summary.on_change(seqno, is_mark=True)
    for number in range(entries):
        summary.on_entry(FailoverEntry(number, seqno, number))
    summary.on_low_points(LowPoints(seqno, seqno // 2))
    summary.kills = [Kill(*pair) for pair in pairs]
    older = summary.encode()[:-16]
    assert fields(PartitionSummary.decode(older)) == fields(summary)
    summary.owed = Owed(UINT64_MAX, seqno)
    data = summary.encode()
    assert fields(PartitionSummary.decode(data)) == fields(summary)
    with pytest.raises(struct.error):
        PartitionSummary.decode(data + b"x")
