"""Effects one by one; whole lives of readers are in tests/crash/test_bookkeeper_schedules."""

import pytest

from millstream.model.position import FailoverEntry, Position
from millstream.upr.core.bookkeeper import (
    FETCH_KEYS_MAX,
    Answer,
    Apply,
    Bookkeeper,
    Document,
    Forget,
    Keep,
    Remember,
    Restore,
    Rewind,
    Sweep,
)
from millstream.upr.core.kept import Kept, Recent
from millstream.upr.core.repair import LoadState
from millstream.wire.frames import deletion, mutation
from support.streams.keeping_reader import World

A, B, C = FailoverEntry(0xA, 0, 1), FailoverEntry(0xB, 4, 2), FailoverEntry(0xC, 3, 3)


def closed(uuid: int, seqno: int) -> Position:
    return Position(uuid, seqno, seqno, seqno)


def put(seqno: int, key: bytes) -> bytes:
    return mutation(0, key, b"v%d" % seqno, seqno, 1, seqno, 0, 0, 0)


@pytest.fixture
def reader() -> Bookkeeper:
    """Stands at 6 of A, with the changes 1 to 6 of k1 to k6 in its ring."""
    made = Bookkeeper(0)
    made.on_opened(Position(0xA, 0, 0, 0, 0), (A,))
    made.on_answer(Answer((), 6))
    made.on_changes([put(n, b"k%d" % n) for n in range(1, 7)], closed(0xA, 6))
    assert made.question is None
    return made


def test_changes_are_remembered_applied_kept_in_this_order(reader: Bookkeeper) -> None:
    frames = [put(7, b"k1"), deletion(0, b"k2", 8, 2, 8, 1)]
    remember, apply, keep = reader.on_changes(frames, Position(0xA, 8, 6, 9))
    assert remember == Remember(0, [Recent(7, b"k1"), Recent(8, b"k2")])
    assert isinstance(apply, Apply)
    assert (apply.load, [change.is_deleted for change in apply.changes]) == (1, [False, True])
    assert keep == Keep(0, Kept(Position(0xA, 8, 6, 9), (A,), LoadState()))
    assert reader.on_moved(Position(0xA, 8, 6, 9)) == []


def test_a_rollback_fetches_what_the_ring_names_above(reader: Bookkeeper) -> None:
    assert reader.on_rollback(4) == 4
    rewind, keep = reader.on_opened(closed(0xA, 4), (B, A))
    assert rewind == Rewind(0, 4, 0xB, 2)
    kept = Kept(closed(0xA, 4), (B, A), LoadState(), is_undoing=True)
    assert keep == Keep(0, kept)
    assert reader.question is not None
    assert reader.question == (0xB, (b"k5", b"k6"))
    documents = (Document(b"k5", None, 9), Document(b"k6", b"old", 2))
    effects = reader.on_answer(Answer(documents, 9))
    assert effects[:2] == [
        Remember(0, [Recent(2, b"k6"), Recent(9, b"k5")]), Restore(0, 1, documents)
    ]  # fmt: skip
    assert effects[2] == Keep(0, Kept(closed(0xA, 4), (B, A), LoadState()))
    assert effects[3:] == [Forget(0, (Recent(5, b"k5"), Recent(6, b"k6")))]
    assert reader.question is None


def test_many_keys_are_asked_for_a_few_at_a_time() -> None:
    recent = [Recent(n, b"%d" % n) for n in range(1, FETCH_KEYS_MAX + 3)]
    kept = Kept(closed(0xA, 100), (A,), LoadState())
    reader = Bookkeeper(0, kept, recent)
    reader.on_rollback(1)
    reader.on_opened(closed(0xA, 1), (B, A))
    sizes = []
    while (question := reader.question) is not None:
        sizes.append(len(question.keys))
        documents = tuple(Document(key, None, 1) for key in question.keys)
        reader.on_answer(Answer(documents, 1))
    assert sizes == [FETCH_KEYS_MAX, 1]


def test_another_history_is_enough_to_fetch_again(reader: Bookkeeper) -> None:
    made = Bookkeeper(0, reader.kept, [Recent(6, b"k6"), Recent(7, b"seen")])
    assert made.start_again() == (closed(0xA, 6), (A,))
    made.on_opened(closed(0xA, 6), (A,))
    assert made.question is None
    made.on_opened(closed(0xA, 6), (FailoverEntry(0xD, 6, 9), A))
    assert made.question is not None
    assert made.question.keys == (b"seen",)


def test_below_the_ring_a_new_load_begins_and_sweeps(reader: Bookkeeper) -> None:
    made = Bookkeeper(0, reader.kept, [Recent(5, b"k5"), Recent(6, b"k6")], ring_changes=1)
    made.on_changes([put(7, b"k7")], closed(0xA, 7))
    assert made.kept.loaded.floor == 6
    assert made.on_rollback(5) == 0
    effects = made.on_opened(Position(0xA, 0, 0, 0, 2), (C, A))
    begun = Kept(Position(0xA, 0, 0, 0, 2), (C, A), LoadState(2, 2, is_loading=True))
    assert effects == [Rewind(0, 0, 0xC, 3), Keep(0, begun), Forget(0, (Recent(7, b"k7"),))]
    assert made.on_answer(Answer((), 3)) == []
    effects = made.on_changes([put(3, b"k3")], closed(0xA, 3))
    assert effects[2:4] == [Sweep(0, 2), Keep(0, made.kept)]
    assert (made.kept.loaded.is_loading, made.kept.loaded.floor) == (False, 2)


@pytest.mark.parametrize(("purge_seqno", "load"), [(2, 1), (5, 2), (None, 2)])
def test_a_load_that_was_killed_at_0_begins_anew_if_the_purge_point_moved(
    purge_seqno: int | None, load: int
) -> None:
    kept = Kept(Position(0xA, 0, 0, 0, 2), (A,), LoadState(floor=2, is_loading=True))
    reader = Bookkeeper(0, kept, [Recent(3, b"applied")])
    reader.on_opened(Position(0xA, 0, 0, 0, purge_seqno), (A,))
    assert reader.kept.loaded.load == load


def test_nothing_is_stored_before_the_point_is_accepted(reader: Bookkeeper) -> None:
    before = reader.kept
    assert reader.on_rollback(4) == 4
    assert reader.start_again() == (closed(0xA, 6), (A,))
    assert reader.on_opened(closed(0xA, 6), (A,)) == []
    assert reader.kept == before


def test_a_partition_without_changes_is_a_complete_snapshot(reader: Bookkeeper) -> None:
    reader.on_rollback(0)
    reader.on_opened(Position(0xC, 0, 0, 0, 0), (C,))
    assert reader.question == (0xC, ())
    assert reader.on_answer(Answer((), 0)) == [Sweep(0, 2), Keep(0, reader.kept)]
    assert not reader.kept.loaded.is_loading


def test_without_a_purge_seqno_the_first_snapshot_is_the_floor() -> None:
    reader = Bookkeeper(0)
    reader.on_opened(Position(0xA, 0, 0, 0), (A,))
    reader.on_answer(Answer((), 6))
    reader.on_changes([put(2, b"k2")], Position(0xA, 2, 0, 6))
    reader.on_changes([put(6, b"k6")], closed(0xA, 6))
    assert reader.kept.loaded.floor == 6


def test_a_first_load_that_is_killed_again_and_again_comes_to_its_end() -> None:
    """Deletions were forgotten in most of what is loaded, and a connection brings few changes."""
    world = World(0)
    line, partition = world.line, world.bucket.partitions[0]
    line.kills, line.window_bytes = 0.0, 1
    for number in range(60):
        partition.put(b"k%d" % (number % 40), b"x" if number % 3 else None)
    partition.purge(55)
    for _ in range(100):
        line.start()
        line.connect(world.bucket)
        for _ in range(15):
            line.exchange()
        line.disconnect()
    assert line.bookkeepers[0].kept.loaded.load == 1
    assert line.bookkeepers[0].kept.position.seqno == partition.high_seqno
    assert line.stores[0].values == partition.state_at(partition.high_seqno)
