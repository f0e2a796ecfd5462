from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.model.position import FailoverEntry
from millstream.storage.core import records
from millstream.storage.core.records import (
    ENVELOPE_BYTES,
    ChangeColumns,
    Kind,
    LowPoints,
    StoredChange,
    change_of_record,
    change_record,
    cut_changes,
    cut_frames,
    encode_changes,
    encode_many,
    walk,
)
from millstream.wire.frames import deletion, expiration, mutation

seqnos = st.integers(1, 2**48)
keys = st.binary(min_size=1, max_size=250)


@st.composite
def stored_changes(draw):
    key, seqno = draw(keys), draw(seqnos)
    make = draw(st.sampled_from(("put", "delete", "expire")))
    if make == "put":
        frame = mutation(3, key, draw(st.binary(max_size=2000)), seqno, 1, 5, 2**32 - 1, 0, 1)
    else:
        frame = (deletion if make == "delete" else expiration)(3, key, seqno, 1, 5, 7)
    return StoredChange(
        frame, draw(st.integers(0, 2**64 - 1)), draw(st.binary(max_size=300)),
        draw(st.binary(max_size=300)),
    )  # fmt: skip


def reader(data):
    return lambda offset, size: data[offset : offset + size]


@given(st.lists(stored_changes(), min_size=1, max_size=20), st.integers(0, 1023))
def test_what_is_encoded_is_walked_and_cut_out_again(changes, partition_id):
    parts = []
    lengths = encode_changes(ChangeColumns.of(partition_id, changes), parts)
    data = b"".join(parts)
    assert sum(lengths) == len(data)
    found = list(walk(reader(data), 0, len(data)))
    assert [record.length for record in found] == lengths
    assert [record.is_mark for record in found] == [False] * (len(changes) - 1) + [True]
    for record, change in zip(found, changes, strict=True):
        assert record.kind == Kind.CHANGE
        assert record.partition_id == partition_id
        assert record.previous_seqno == change.previous_seqno
        assert record.payload == change.frame
        whole = data[record.offset : record.offset + record.length]
        assert change_of_record(whole) == (partition_id, change)
        assert records.key_of(change.frame) in change.frame
        assert whole == change_record(partition_id, change, is_mark=record.is_mark)


@given(st.lists(st.lists(stored_changes(), min_size=1, max_size=4), max_size=4))
def test_many_batches_are_encoded_as_one_by_one(batches):
    columns = [
        ChangeColumns.of(p, changes)._replace(sidecars=None) for p, changes in enumerate(batches)
    ]
    one_by_one, at_once = [], []
    lengths = [encode_changes(batch, one_by_one) for batch in columns]
    assert encode_many(columns, at_once) == lengths
    assert b"".join(at_once) == b"".join(one_by_one)
    gone = [
        [seqno for seqno, frame in zip(c.seqnos, c.frames, strict=True) if frame[1] != 0x57]
        for c in columns
    ]
    assert [records.tombstones_of(batch) for batch in columns] == gone
    assert records.has_tombstones(columns) == any(gone)


@given(st.lists(stored_changes(), min_size=2, max_size=6), st.data())
def test_a_damaged_byte_ends_the_walk_there(changes, data):
    parts = []
    lengths = encode_changes(ChangeColumns.of(0, changes), parts)
    log = bytearray(b"".join(parts))
    at = data.draw(st.integers(0, len(log) - 1))
    log[at] ^= data.draw(st.integers(1, 255))
    ends = [sum(lengths[: n + 1]) for n in range(len(lengths))]
    whole = sum(end <= at for end in ends)
    assert len(list(walk(reader(bytes(log)), 0, len(log)))) == whole


@given(st.lists(stored_changes(), min_size=1, max_size=5), st.integers(0, 99), st.data())
def test_one_read_is_cut_up_to_the_first_damaged_record(changes, start, data):
    parts = []
    lengths = encode_changes(ChangeColumns.of(3, changes), parts)
    content = bytearray(b"".join(parts))
    stops = [start + stop for stop in accumulate(lengths)]
    offsets = [start, *stops[:-1]]
    frames = [change.frame for change in changes]
    assert cut_changes(bytes(content), start, offsets, stops) == changes
    assert cut_frames(bytes(content), start, offsets, stops) == frames
    wanted = data.draw(st.lists(st.integers(0, len(changes) - 1), min_size=1, unique=True))
    some = sorted(wanted)
    picked = [[column[n] for n in some] for column in (offsets, stops)]
    assert cut_frames(bytes(content), start, *picked) == [frames[n] for n in some]
    at = data.draw(st.integers(0, len(content) - 1))
    whole = sum(stop - start <= at for stop in stops)
    content[at] ^= data.draw(st.integers(1, 255))
    for damaged in (bytes(content), bytes(content[:at])):
        assert cut_changes(damaged, start, offsets, stops) == changes[:whole]
        assert cut_frames(damaged, start, offsets, stops) == frames[:whole]


@given(stored_changes(), st.data())
def test_a_cut_record_is_no_record(change, data):
    record = change_record(0, change, is_mark=True)
    cut = data.draw(st.integers(0, len(record) - 1))
    for size in (cut, len(record)):  # the file ends, or says that it goes on
        assert list(walk(reader(record[:cut]), 0, size)) == []
    assert change_of_record(record[:cut]) is None
    assert list(walk(reader(record[:cut].ljust(len(record), b"\0")), 0, len(record))) in (
        [], list(walk(reader(record), 0, len(record))),
    )  # fmt: skip


def test_zeros_are_no_record():
    assert list(walk(reader(bytes(500)), 0, 500)) == []
    assert list(walk(reader(b""), 0, 0)) == []


def test_records_longer_than_a_read_are_read_alone(monkeypatch):
    monkeypatch.setattr(records, "WALK_BYTES", 300)
    changes = [
        StoredChange(mutation(0, b"k", bytes(size), n, 1, 1, 0, 0, 0), 0, b"")
        for n, size in enumerate((10, 500, 20, 240, 5000, 0), 1)
    ]
    parts = []
    lengths = encode_changes(ChangeColumns.of(0, changes), parts)
    data = b"".join(parts)
    found = list(walk(reader(data), 0, len(data)))
    assert [record.payload for record in found] == [change.frame for change in changes]
    torn = data[:-1]
    assert len(list(walk(reader(torn), 0, len(torn)))) == len(changes) - 1
    damaged = bytearray(data)
    damaged[lengths[0] + 400] ^= 1
    assert len(list(walk(reader(bytes(damaged)), 0, len(data)))) == 1


@pytest.mark.parametrize(
    ("data", "kind", "partition_id"),
    [
        (records.entry_record(3, FailoverEntry(2**48 - 1, 5, 2**53 - 1)), Kind.ENTRY, 3),
        (records.rollback_record(1023, 2**60), Kind.ROLLBACK, 1023),
        (records.mark_record(0, 7), Kind.MARK, 0),
        (records.low_points_record(1, LowPoints(9, 8)), Kind.LOW_POINTS, 1),
        (records.clean_stop_record(bytes(16)), Kind.CLEAN_STOP, records.NO_PARTITION),
        (records.commit_record(bytes(16)), Kind.COMMIT, records.NO_PARTITION),
    ],
)
def test_records_that_are_no_changes(data, kind, partition_id):
    (found,) = walk(reader(data), 0, len(data))
    assert (found.kind, found.partition_id, found.length) == (kind, partition_id, len(data))
    assert found.is_mark == (kind == Kind.MARK)
    assert len(found.payload) == len(data) - ENVELOPE_BYTES
    assert change_of_record(data) is None


def test_payloads_are_read_back():
    entry, points = FailoverEntry(2**48 - 1, 5, 2**53 - 1), LowPoints(9, 8)
    data = b"".join(
        (
            records.entry_record(3, entry), records.rollback_record(3, 2**60),
            records.mark_record(3, 7), records.low_points_record(3, points),
        )
    )  # fmt: skip
    payloads = [found.payload for found in walk(reader(data), 0, len(data))]
    assert records.entry_of(payloads[0]) == entry
    assert [records.seqno_payload(payload) for payload in payloads[1:3]] == [2**60, 7]
    assert records.low_points_of(payloads[3]) == points


def test_a_short_record_is_no_change():
    assert change_of_record(b"") is None
    assert change_of_record(bytes(8) + b"\1" + bytes(100)) is None


@given(stored_changes(), st.data())
def test_a_record_is_taken_only_for_the_change_it_is(change, data):
    key = records.key_of(change.frame)
    seqno = int.from_bytes(change.frame[24:32], "big")
    record = change_record(3, change, is_mark=data.draw(st.booleans()))
    assert records.named_change(record, 3, key, seqno) == change
    assert records.named_change(record + b"more", 3, key, seqno) == change
    for other in (
        (2, key, seqno),
        (3, key + b"x", seqno),
        (3, key[:-1], seqno),
        (3, key, seqno + 1),
    ):
        assert records.named_change(record, *other) is None
    cut = data.draw(st.integers(0, len(record) - 1))
    assert records.named_change(record[:cut], 3, key, seqno) is None
    spoiled = bytearray(record)
    spoiled[cut] ^= data.draw(st.integers(1, 255))
    assert records.named_change(bytes(spoiled), 3, key, seqno) is None
