import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import CorruptionError
from millstream.model.position import FailoverEntry, Position
from millstream.upr.core.checkpoint import (
    ENDS_MAX,
    Checkpoint,
    StreamProgress,
    checkpoint_from_json,
    checkpoint_to_json,
)

SEQNO = st.integers(0, 2**48 - 1)
UUID = st.integers(0, 2**48 - 1)
STANDING = st.builds(
    StreamProgress,
    st.builds(Position, UUID, SEQNO, SEQNO, SEQNO, st.one_of(st.none(), SEQNO)),
    st.lists(st.builds(FailoverEntry, UUID, SEQNO, st.integers(0, 2**53 - 1)), max_size=5).map(
        tuple
    ),
    st.lists(SEQNO, max_size=5).map(tuple),
    SEQNO,
)


@given(progress=st.dictionaries(st.integers(0, 1023), STANDING, max_size=10))
def test_json_keeps_everything(progress: dict[int, StreamProgress]) -> None:
    checkpoint = Checkpoint("orders", "feed", progress)
    assert checkpoint_from_json(checkpoint_to_json(checkpoint), name="f") == checkpoint


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\xff",
        b"{}",
        b'{"v":2,"bucket":"b","bucket_uuid":"u","partitions":{}}',
        b'{"v":1,"bucket":"b","bucket_uuid":"u","partitions":{"x":{"position":["a",1,1,1]}}}',
        b'{"v":1,"bucket":"b","bucket_uuid":"u","partitions":{"1024":{"position":["a",1,1,1]}}}',
        b'{"v":1,"bucket":"b","bucket_uuid":"u","partitions":{"1":{"position":[1,1,1,1]}}}',
        b'{"v":1,"bucket":"b","bucket_uuid":"u","partitions":{"1":{"position":["zz",1,1,1]}}}',
    ],
)
def test_other_files_are_refused_by_name(text: bytes) -> None:
    with pytest.raises(CorruptionError, match=r"place\.json is not a checkpoint"):
        checkpoint_from_json(text, name="place.json")


@given(ends=st.sets(st.integers(1, 10_000), max_size=200).map(sorted))
def test_ends_are_bounded_and_the_newest_and_an_old_one_stay(ends: list[int]) -> None:
    progress = StreamProgress()
    for end in ends:
        progress = progress.with_end(Position(1, end, end, end))
    assert len(progress.ends) <= ENDS_MAX
    assert list(progress.ends) == sorted(set(progress.ends) & set(ends))
    if ends:
        assert progress.ends[-1] == ends[-1]
        assert progress.ends[0] == ends[0]


def test_undoing() -> None:
    progress = StreamProgress(ends=(10, 20, 30), began_at=10)
    assert [progress.undo_point(seqno) for seqno in (30, 29, 20, 10, 4, 0)] == [
        30,
        20,
        20,
        10,
        4,
        0,
    ]
    gone_back = progress.undone_to(Position(1, 20, 20, 20))
    assert (gone_back.ends, gone_back.began_at) == ((10, 20), 10)
    assert progress.undone_to(Position(1, 4, 4, 4)).began_at == 4
    assert StreamProgress(ends=(10,)).undo_point(9) == 0
