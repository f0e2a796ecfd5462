import itertools

import pytest

from millstream.model.partitions import PartitionState
from millstream.model.position import FailoverEntry
from millstream.storage.core import commit as commit_module
from millstream.storage.core.commit import control, encode_batches, encode_controls
from millstream.storage.core.records import (
    ChangeColumns,
    CopyNews,
    Kind,
    LowPoints,
    Owed,
    StoredChange,
    commit_record,
    walk,
)
from millstream.wire.frames import mutation, seqno_of

HEAD = commit_record(bytes(16))
LOG = (FailoverEntry(7, 5, 2), FailoverEntry(3, 0, 1))


def batch(seqnos, mark=None, news=None):
    changes = [StoredChange(mutation(1, b"k", b"v", s, 1, 1, 0, 0, 0), 0, b"lin") for s in seqnos]
    return ChangeColumns.of(1, changes)._replace(mark=mark, news=news)


def kinds(commit):
    data = b"".join(commit.parts)
    found = list(walk(lambda at, size: data[at : at + size], 0, len(data)))
    assert sum(record.length for record in found) == len(data)
    names = []
    for record in found[1:]:
        at = seqno_of(record.payload) if record.kind == Kind.CHANGE else ""
        names.append(f"{Kind(record.kind).name}{at}{'*' if record.is_mark else ''}")
    return names


def test_a_batch_of_an_active_copy_ends_in_its_mark():
    commit = encode_batches(HEAD, [batch([]), batch([1, 3])])
    assert kinds(commit) == ["CHANGE1", "CHANGE3*"]
    assert [piece.is_marked for piece in commit.pieces] == [True]


@pytest.mark.parametrize(
    ("seqnos", "mark", "right"),
    [
        ([4, 6, 9], 6, ["CHANGE4", "CHANGE6*", "CHANGE9"]),
        ([4, 6, 9], 7, ["CHANGE4", "CHANGE6", "MARK*", "CHANGE9"]),
        ([4, 6, 9], 3, ["MARK*", "CHANGE4", "CHANGE6", "CHANGE9"]),
        ([4, 6], 9, ["CHANGE4", "CHANGE6", "MARK*"]),
        ([4, 6], 0, ["CHANGE4", "CHANGE6"]),
        ([4, 6], 6, ["CHANGE4", "CHANGE6*"]),
        ([], 9, ["MARK*"]),
        ([], 0, []),
    ],
)
def test_the_mark_of_a_replica_stands_where_its_snapshot_ended(seqnos, mark, right):
    assert kinds(encode_batches(HEAD, [batch(seqnos, mark)])) == right


def test_what_must_be_known_of_changes_stands_before_them():
    news = CopyNews(LOG, LowPoints(4, 4), 12, Owed(20, 20))
    commit = encode_batches(HEAD, [batch([4, 12], 0, news)])
    assert kinds(commit) == ["HISTORY", "LOW_POINTS", "OWED", "RANGE", "CHANGE4", "CHANGE12"]
    commit = encode_batches(HEAD, [batch([12], None, CopyNews(range_end=12))])
    assert kinds(commit) == ["RANGE", "CHANGE12*"]
    assert kinds(encode_batches(HEAD, [batch([], None, CopyNews(LOG))])) == ["HISTORY"]


def test_pieces_say_what_the_bytes_say():
    news = CopyNews(LOG, LowPoints(1, 0), 9)
    commits = [encode_batches(HEAD, [batch([2, 4, 6], m, news), batch([8])]) for m in range(8)]
    contents = {
        Kind.STATE: PartitionState.DEAD,
        Kind.BRANCH: 9,
        Kind.ROLLBACK: 3,
        Kind.ENTRY: LOG[0],
    }
    controls = [control(kind, 5, content) for kind, content in contents.items()]
    for commit in [*commits, encode_controls(HEAD, controls)]:
        data = b"".join(commit.parts)
        found = list(walk(lambda at, size, data=data: data[at : at + size], 0, len(data)))[1:]
        sizes = [getattr(piece, "lengths", None) or [len(piece.data)] for piece in commit.pieces]
        assert [record.length for record in found] == list(itertools.chain(*sizes))


def test_large_frames_are_parts_of_a_commit_of_their_own_and_not_copied(monkeypatch):
    monkeypatch.setattr(commit_module, "PART_BYTES", 300)
    large = [mutation(1, b"k%d" % s, b"x" * 400 * (s % 2), s, 1, 1, 0, 0, 0) for s in range(1, 9)]
    changes = [StoredChange(frame, 0, b"lin") for frame in large]
    commit = encode_batches(HEAD, [ChangeColumns.of(1, changes)])
    assert len(commit.parts) > 4
    assert all(any(part is frame for part in commit.parts) for frame in large[::2])
    assert commit.size == sum(map(len, commit.parts))
    assert kinds(commit)[-1] == "CHANGE8*"
    monkeypatch.setattr(commit_module, "PART_BYTES", 30_000)
    [whole] = encode_batches(HEAD, [ChangeColumns.of(1, changes)]).parts
    assert whole == b"".join(commit.parts)
