from hypothesis import given
from hypothesis import strategies as st

from millstream.model.partitions import PartitionState
from millstream.model.position import FailoverEntry
from millstream.storage.core.commit import control
from millstream.storage.core.controls import ControlRecord, control_of, kept_controls
from millstream.storage.core.records import (
    Kind,
    LowPoints,
    Owed,
    clean_stop_record,
    record,
    walk,
)
from millstream.storage.core.recovery import take_in
from millstream.storage.core.summary import PartitionSummary


def entry(branch, seqno):
    return FailoverEntry(100 + branch, seqno, branch)


def log_of(*written):
    """(segment, kind, content) in log order, as read back."""
    found = []
    for segment, kind, content in written:
        data = control(kind, 3, content).data
        (one,) = walk(lambda at, size, data=data: data[at : at + size], 0, len(data))
        found.append(control_of(segment, one))
        assert found[-1] == ControlRecord(segment, kind, 3, content, data)
    return found


def kept(written, *run, older_top=0):
    left = kept_controls(log_of(*written), run, older_top)
    return [(c.segment, c.kind, c.content) for c in left]


def test_entries_in_force_stay_and_those_rolled_back_go():
    written = [
        (1, Kind.ENTRY, entry(1, 0)),
        (1, Kind.ENTRY, entry(2, 50)),
        (2, Kind.ROLLBACK, 20),
        (2, Kind.ENTRY, entry(3, 20)),
    ]
    assert kept(written, 1, 2) == [written[0], written[3]]
    assert kept(written, 1) == [written[0]]
    assert kept(written, 2) == written[2:], "its entry is still in segment 1"


def test_a_rollback_stays_while_older_segments_hold_what_it_killed():
    written = [(3, Kind.ENTRY, entry(1, 0)), (4, Kind.ROLLBACK, 20), (4, Kind.ENTRY, entry(2, 20))]
    assert kept(written, 4, older_top=21) == written[1:]
    assert kept(written, 4, older_top=20) == written[2:]
    assert kept(written, 3, 4, older_top=30) == written


def test_the_last_branch_is_not_forgotten_with_its_entry():
    """On a copy that follows another no entry of its own comes after a rollback."""
    written = [
        (1, Kind.STATE, PartitionState.REPLICA),
        (1, Kind.HISTORY, (entry(4, 30), entry(1, 0))),
        (1, Kind.ENTRY, entry(7, 40)),
        (2, Kind.ROLLBACK, 10),
    ]
    assert kept(written, 1, 2) == written
    raised = [*written, (3, Kind.BRANCH, 9)]
    assert kept(raised, 1, 2) == [written[0], written[1], written[3]]
    assert kept(raised, 3) == [raised[-1]]


def test_only_the_newest_of_a_kind_stays():
    written = [
        (1, Kind.STATE, PartitionState.REPLICA),
        (1, Kind.RANGE, 9),
        (1, Kind.OWED, Owed(9, 9)),
        (1, Kind.LOW_POINTS, LowPoints(3, 1)),
        (2, Kind.RANGE, 20),
        (2, Kind.LOW_POINTS, LowPoints(5, 1)),
        (2, Kind.OWED, Owed(0, 0)),
        (3, Kind.STATE, PartitionState.ACTIVE),
    ]
    assert kept(written, 1, 2, 3) == written[4:]
    assert kept(written, 1) == []
    rolled_back = [*written, (4, Kind.ROLLBACK, 0)]
    assert kept(rolled_back, 1, 2, 3, 4) == written[-2:]
    assert kept(rolled_back, 4) == [rolled_back[-1]]


def test_a_source_s_history_replaces_all_before_it():
    written = [
        (1, Kind.ENTRY, entry(1, 0)),
        (1, Kind.HISTORY, (entry(2, 5), entry(1, 0))),
        (2, Kind.HISTORY, (entry(6, 8), entry(2, 5))),
        (2, Kind.ENTRY, entry(8, 9)),
    ]
    assert kept(written, 1, 2) == written[2:]


def test_clean_stops_go_and_kinds_of_a_newer_format_stay():
    def read(data):
        (one,) = walk(lambda at, size: data[at : at + size], 0, len(data))
        return control_of(5, one)

    assert kept_controls([read(clean_stop_record(bytes(16)))], [5], 0) == []
    newer = read(record(99, 3, b"something"))
    assert newer.content is None
    assert kept_controls([newer, newer], [5], 0) == [newer, newer]


SEQNOS = st.integers(0, 6)
ENTRIES = st.builds(entry, st.integers(1, 9), SEQNOS)
CONTENTS = st.one_of(
    st.tuples(st.just(Kind.ENTRY), ENTRIES),
    st.tuples(st.just(Kind.ROLLBACK), SEQNOS),
    st.tuples(st.just(Kind.HISTORY), st.lists(ENTRIES, min_size=1, max_size=3).map(tuple)),
    st.tuples(st.just(Kind.LOW_POINTS), st.builds(LowPoints, SEQNOS, SEQNOS)),
    st.tuples(st.just(Kind.BRANCH), st.integers(1, 9)),
    st.tuples(st.just(Kind.STATE), st.sampled_from(PartitionState)),
    st.tuples(st.just(Kind.RANGE), st.integers(1, 6)),
    st.tuples(st.just(Kind.OWED), st.builds(Owed, SEQNOS, SEQNOS)),
)


def built(controls):
    summary = PartitionSummary()
    for one in controls:
        if one.kind == Kind.ROLLBACK:
            summary.on_rollback(one.segment, one.content)
        else:
            take_in(summary, one.kind, one.content)
    summary.kills = []
    return summary.encode()


@given(st.lists(CONTENTS, max_size=12), st.data())
def test_what_is_left_says_the_same_also_after_what_comes_later(contents, data):
    segments = sorted(data.draw(st.lists(st.integers(1, 5), min_size=12, max_size=12)))
    controls = log_of(*((s, *content) for s, content in zip(segments, contents, strict=False)))
    begin = data.draw(st.integers(1, 5))
    run = range(begin, data.draw(st.integers(begin, 5)) + 1)
    left = kept_controls(controls, run, data.draw(SEQNOS))
    stays = set(map(id, left))
    assert [*map(id, left)] == [id(c) for c in controls if c.segment in run and id(c) in stays]
    after = [one for one in controls if one.segment not in run or id(one) in stays]
    assert built(after) == built(controls)
    later = log_of(*((6, *content) for content in data.draw(st.lists(CONTENTS, max_size=3))))
    assert built([*after, *later]) == built([*controls, *later])
