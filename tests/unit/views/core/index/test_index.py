import pytest

from millstream.errors import ConditionError, CorruptionError, UnavailableError, UsageError
from millstream.model.position import FailoverEntry, Position
from millstream.trees.core.check import check
from millstream.views.core.index.back_index import back_key, back_value
from millstream.views.core.index.header import DocumentRows, Judged, MapFailure, PartRead
from millstream.views.core.index.index import Index
from millstream.views.core.index.kept_roots import KeptBounds
from millstream.views.core.rows import row_key, row_value, split_row_key
from simulators.index_world import SHAPE
from support.views import tree_model
from support.views.memory_index_store import COMMIT, MemoryIndexStore

LOG = (FailoverEntry(1, 0, 1),)
LATER = (FailoverEntry(2, 10, 2), FailoverEntry(1, 0, 1))
JUDGED = {p: Judged(LOG, 1000) for p in range(4)}
FAILED_OVER = {p: Judged(LATER, 1000) for p in range(4)}
A, B = b"a\0", b"b\0"
KEPT_8 = KeptBounds(8, 8)


def closed(seqno, uuid=1):
    return Position(uuid, seqno, seqno, seqno)


def row(ekey, value=b"1", tree=0):
    return (tree, ekey, b'"k"', value)


def part(start, end, *documents, partition=0, **more):
    rows = [DocumentRows(partition, doc_id, emitted) for doc_id, emitted in documents]
    begin = closed(start) if start else Position()
    return PartRead(begin, closed(end), LOG, 3, rows, **more)


def opened(store=None, bounds=KEPT_8):
    return Index(store or MemoryIndexStore(), SHAPE, 5, bounds)


@pytest.fixture
def store():
    return MemoryIndexStore()


@pytest.fixture
def index(store):
    made = opened(store)
    made.set_states([0, 1], [2], 6)
    made.take_over("test", 7)
    return made


def publish(index, parts, judged=JUDGED, now_ms=8):
    return index.publish(index.newest.fence, parts, judged, now_ms)


def rows_of(index, tree=0, wanted=None):
    with index.snapshot(0) as snapshot:
        return {
            split_row_key(key): value
            for leaf in snapshot.tree(tree).scan(wanted=wanted)
            for key, value in zip(leaf.keys, leaf.values, strict=True)
        }


def sound(index, store):
    for header in index.kept:
        for root in header.trees:
            check(store, root, SHAPE.reducers[0])
    return True


def test_a_new_index_is_empty_and_there_again_when_opened(store):
    index = opened(store)
    header = index.newest
    assert (header.signature, header.collation, header.reduces) == (
        SHAPE.signature, SHAPE.collation, SHAPE.reduces,
    )  # fmt: skip
    assert (header.commit, header.created_ms, header.committed_ms) == (0, 5, 5)
    assert header.trees == (None, None)
    assert opened(store).newest == header


def test_partitions_come_are_activated_go_and_are_dropped(index):
    assert index.newest.states == {0: "active", 1: "active", 2: "passive"}
    assert index.newest.positions == {0: Position(), 1: Position(), 2: Position()}
    publish(index, {2: part(0, 5, (b"d", [row(A)]), partition=2)})
    commit = index.newest.commit
    index.set_states([0, 1], [2], 9)
    assert index.newest.commit == commit
    index.set_states([0, 2], [], 9)
    header = index.newest
    assert header.states == {0: "active", 1: "cleanup", 2: "active"}
    assert header.positions == {0: Position(), 2: closed(5)}
    assert header.dirty == 0b010
    assert index.clean_step(9)
    assert index.newest.states == {0: "active", 2: "active"}
    with pytest.raises(UsageError) as raised:
        index.set_states([0], [0], 9)
    assert raised.value.code == "bad_partition_set"


def test_rows_are_published_changed_and_taken_out(index, store):
    done = publish(index, {0: part(0, 5, (b"d", [row(A), row(B, tree=1)]), (b"e", [row(A)]))})
    assert (done.partitions, done.left_out) == ((0,), {})
    assert rows_of(index).keys() == {(A, b"d"), (A, b"e")}
    assert rows_of(index, 1).keys() == {(B, b"d")}
    publish(index, {0: part(5, 9, (b"d", [row(B, b"2")]), (b"e", []))})
    assert rows_of(index) == {(B, b"d"): row_value([(b'"k"', b"2")])}
    assert rows_of(index, 1) == {}
    header = index.newest
    assert header.positions[0] == closed(9)
    assert (header.failover_logs[0], header.purge_seqnos[0]) == (LOG, 3)
    assert header.positions[1] == Position()
    assert header.committed_ms == 8
    assert sound(index, store)


def test_a_change_that_leaves_rows_as_they_are_writes_only_a_header(index, store):
    documents = [(b"d%d" % n, [row(A), row(B, tree=1)]) for n in range(100)]
    publish(index, {0: part(0, 5, *documents)})
    before = index.newest
    publish(index, {0: part(5, 9, *documents)})
    assert index.newest.positions[0] == closed(9)
    assert index.newest.roots == before.roots
    publish(index, {0: part(9, 10, (b"d5", [row(A), row(B, b"2", tree=1)]))})
    header = index.newest
    assert (header.back, header.trees[0]) == (before.back, before.trees[0])
    assert header.trees[1] != before.trees[1]


def test_parts_are_left_out_one_by_one(index):
    parts = {
        0: part(0, 5, (b"d", [row(A)])),
        1: part(0, 5, (b"e", [row(A)]), partition=1, is_whole=False),
        3: part(0, 5, (b"f", [row(A)]), partition=3),
    }
    done = publish(index, parts)
    assert (done.partitions, done.left_out) == ((0,), {1: "lease_lost", 3: "not_indexed"})
    assert rows_of(index).keys() == {(A, b"d")}
    commit = index.newest.commit
    assert publish(index, parts).left_out[0] == "nothing_new"
    assert index.newest.commit == commit


def test_another_writer_is_refused(index):
    fence = index.newest.fence
    assert index.take_over("another", 9) == fence + 1
    assert index.newest.writer == "another"
    for call in (
        lambda: index.publish(fence, {}, {}, 9),
        lambda: index.load(fence, {}, {}, (), ((), ()), 9),
    ):
        with pytest.raises(ConditionError, match="'another' has taken") as raised:
            call()
        assert raised.value.code == "index_fenced"


def test_failures_of_maps_are_counted_with_their_part(index):
    failed = [MapFailure(1, "d", "boom"), MapFailure(0, "e", "bang"), MapFailure(1, "f", "oh")]
    publish(
        index, {0: part(0, 5, failures=failed), 1: part(0, 5, is_whole=False, failures=failed)}
    )
    errors = index.newest.map_errors
    assert errors[1].total == 2
    assert errors[1].last == (("d", "boom"), ("f", "oh"))
    assert errors[0].last == (("e", "bang"),)


def test_failures_are_counted_of_trees_of_which_none_is_listed(index):
    publish(index, {0: part(0, 5, failures=[MapFailure(1, "d", "boom")], failures_before={0: 7})})
    errors = index.newest.map_errors
    assert (errors[0].total, errors[0].last, errors[1].total) == (7, (), 1)


# -- first build


def runs(documents):
    """(back rows, rows of both trees) of (partition, doc id), sorted."""
    back = sorted((back_key(p, d), p, back_value({0: [A], 1: [B]})) for p, d in documents)
    trees = [
        sorted((row_key(ekey, d), p, row_value([(b"1", b"2")])) for p, d in documents)
        for ekey in (A, B)
    ]
    return back, trees


def test_a_first_build_equals_changes_one_after_the_other(index, store):
    documents = [(n % 2, b"d%04d" % n) for n in range(1000)]
    parts = {p: part(0, 600, partition=p) for p in (0, 1)}
    done = index.load(index.newest.fence, parts, JUDGED, *runs(documents), 9)
    assert done == ((0, 1), {})
    assert len(rows_of(index)) == 1000
    assert index.newest.positions[1] == closed(600)
    assert sound(index, store)
    publish(index, {0: part(600, 601, (b"d0002", []))})
    assert len(rows_of(index)) == len(rows_of(index, 1)) == 999
    with pytest.raises(UsageError) as raised:
        index.load(index.newest.fence, parts, JUDGED, (), ((), ()), 9)
    assert raised.value.code == "index_not_empty"


def test_a_first_build_passes_over_rows_of_parts_left_out(index, store):
    documents = [(n % 2, b"d%d" % n) for n in range(18)]
    parts = {0: part(0, 5), 1: part(0, 5, partition=1, is_whole=False)}
    done = index.load(index.newest.fence, parts, JUDGED, *runs(documents), 9)
    assert done.left_out == {1: "lease_lost"}
    assert len(rows_of(index)) == 9
    assert index.newest.positions[1] == Position()
    assert sound(index, store)


def test_a_build_takes_the_place_of_all_rows_and_lets_old_nodes_go(index, store):
    old = {p: part(0, 5, *((b"x%d-%d" % (p, n), [row(A)]) for n in range(300)), partition=p)
           for p in (0, 1)}  # fmt: skip
    publish(index, old)
    publish(index, {2: part(0, 5, (b"y", [row(A)]), partition=2)})
    index.set_states([0, 1], [], 9)
    before = index.newest
    documents = [(n % 2, b"d%04d" % n) for n in range(1000)]
    parts = {p: part(0, 600, partition=p) for p in (0, 1)}
    with index.snapshot(0) as snapshot:
        done = index.rebuild(index.newest.fence, parts, JUDGED, *runs(documents), 9)
        assert sum(len(leaf.keys) for leaf in snapshot.tree(0).scan(wanted=0b11)) == 600
    assert done == ((0, 1), {})
    header = index.newest
    assert rows_of(index).keys() == {(A, doc_id) for _, doc_id in documents}
    assert header.states == {0: "active", 1: "active"}
    assert header.positions == {0: closed(600), 1: closed(600)}
    assert header.dirty == 0
    assert before in index.kept
    for now_ms in range(10, 20):
        index.take_over("test", now_ms)
    assert before not in index.kept
    assert set(store.nodes) == set(live_nodes(store, index)), "no node of the trees before is left"
    assert header.nodes == len(store.nodes)
    assert sound(index, store)
    publish(index, {0: part(600, 601, (b"d0002", []))})
    assert len(rows_of(index)) == 999


def live_nodes(store, index):
    return [n for root in index.newest.roots for n in tree_model.live_nodes(store, root)]


def test_a_rollback_may_go_behind_a_build(index, store):
    publish(index, {0: part(0, 5, (b"x", [row(A)]))})
    documents = [(0, b"d%04d" % n) for n in range(1000)]
    done = index.rebuild(index.newest.fence, {0: part(0, 600)}, JUDGED, *runs(documents), 9)
    assert done.partitions == (0,)
    assert index.roll_back(FAILED_OVER, 10).to_commit is not None
    assert rows_of(index).keys() == {(A, b"x")}
    for now_ms in range(11, 30):
        index.take_over("test", now_ms)
    assert set(store.nodes) == set(live_nodes(store, index))
    assert sound(index, store)


def test_a_build_that_lacks_a_partition_changes_nothing(index):
    publish(index, {p: part(0, 5, (b"x%d" % p, [row(A)]), partition=p) for p in (0, 1)})
    before = index.newest
    documents = [(0, b"d%04d" % n) for n in range(10)]
    for parts in ({0: part(0, 9)}, {0: part(0, 9), 1: part(0, 2000, partition=1)}, {}):
        done = index.rebuild(before.fence, parts, JUDGED, *runs(documents), 9)
        assert done.partitions == ()
        assert 1 in done.left_out
        assert index.newest == before
    with pytest.raises(ConditionError):
        index.rebuild(before.fence - 1, parts, JUDGED, *runs(documents), 9)


def test_a_first_build_of_nothing_commits_nothing(index):
    commit = index.newest.commit
    assert index.load(index.newest.fence, {}, JUDGED, (), ((), ()), 9).partitions == ()
    assert index.newest.commit == commit


def test_a_first_build_that_breaks_off_leaves_the_index_empty(index, store):
    def broken():
        yield from runs([(0, b"d%05d" % n) for n in range(5000)])[0]
        raise OSError("a run cannot be read")

    with pytest.raises(OSError, match="a run"):
        index.load(index.newest.fence, {0: part(0, 5)}, JUDGED, broken(), ((), ()), 9)
    assert index.newest.roots == (None, None, None)
    publish(index, {0: part(0, 5, (b"d", [row(A)]))})
    assert rows_of(index).keys() == {(A, b"d")}
    assert sound(index, store)


# -- rollback


def test_a_rollback_goes_back_to_the_newest_root_that_serves(index, store):
    publish(index, {0: part(0, 5, (b"d", [row(A)])), 1: part(0, 7, (b"x", [row(A)]), partition=1)})
    publish(index, {0: part(5, 10, (b"e", [row(A)]))})
    to = index.newest
    publish(index, {0: part(10, 12, (b"f", [row(A)]), (b"d", []))})
    publish(index, {0: part(12, 14, (b"g", [row(A)]))})
    index.set_states([0, 1, 2], [], 9)
    fence = index.take_over("later", 9)
    assert index.roll_back(JUDGED, 10).refused == ()
    done = index.roll_back(FAILED_OVER, 10)
    assert (done.refused, done.to_commit, done.void) == ((0,), to.commit, ())
    assert rows_of(index).keys() == {(A, b"d"), (A, b"e"), (A, b"x")}
    header = index.newest
    assert header.positions[0] == closed(10)
    assert header.states == {0: "active", 1: "active", 2: "active"}
    assert header.fence == fence
    assert index.kept[-2].commit == to.commit
    publish(index, {0: PartRead(closed(10), closed(20, 2), LATER)}, FAILED_OVER)
    assert index.newest.positions[0] == closed(20, 2)
    assert sound(index, store)


def test_without_a_root_that_serves_only_the_partitions_concerned_are_filled_anew(store):
    index = opened(store, KeptBounds(1, 1))
    index.set_states([0, 1], [], 6)
    index.take_over("test", 6)
    old = part(0, 12, (b"d", [row(A)]), (b"gone", [row(B, tree=1)]))
    publish(index, {0: old, 1: part(0, 7, (b"x", [row(A)]), partition=1)})
    nodes = set(store.nodes)
    done = index.roll_back(FAILED_OVER, 10)
    assert (done.refused, done.to_commit, done.void) == ((0,), None, (0,))
    header = index.newest
    assert (header.positions[0], header.positions[1]) == (Position(), closed(7))
    assert (header.void, header.countable) == (0b01, 0b10)
    assert set(store.nodes) == nodes  # nothing but a header was written
    assert rows_of(index, wanted=header.countable).keys() == {(A, b"x")}
    again = PartRead(Position(), closed(20, 2), LATER, 0, [DocumentRows(0, b"d", [row(B)])])
    publish(index, {0: again}, FAILED_OVER)
    assert index.newest.void == 0
    assert rows_of(index).keys() == {(B, b"d"), (A, b"x")}
    assert rows_of(index, 1) == {}
    assert sound(index, store)


def test_void_rows_without_a_refill_are_cleaned_in_the_background(store):
    index = opened(store, KeptBounds(1, 1))
    index.set_states([0], [], 6)
    index.take_over("test", 6)
    publish(index, {0: part(0, 12, (b"d", [row(A)]))})
    index.roll_back({0: Judged((FailoverEntry(9, 0, 9),), 0)}, 10)
    assert index.clean_step(11)
    assert (index.newest.void, index.newest.states) == (0, {0: "active"})
    assert rows_of(index) == {}


def test_a_partition_wanted_again_before_it_is_clean_is_filled_anew(index, store):
    publish(index, {0: part(0, 5, (b"d", [row(A)]), (b"old", [row(A)]))})
    index.set_states([1], [2], 9)
    index.set_states([0, 1], [2], 9)
    assert (index.newest.void, index.newest.positions[0]) == (0b1, Position())
    publish(index, {0: part(0, 8, (b"d", [row(A)]))})
    assert rows_of(index).keys() == {(A, b"d")}
    assert sound(index, store)


# -- cleaning, beside updates


def test_cleaning_goes_on_in_steps_between_which_updates_are_published(index, store):
    documents = [
        (b"%d-%05d" % (p, n), [row(A), row(B, tree=1)]) for n in range(2000) for p in (0,)
    ]
    publish(index, {0: part(0, 5, *documents)})
    publish(index, {1: part(0, 5, *documents, partition=1)})
    index.set_states([1], [2], 9)
    steps = 0
    while not index.clean_step(10, nodes_max=3):
        steps += 1
        seqno = 4 + steps
        publish(index, {1: part(seqno, seqno + 1, (b"n%d" % steps, [row(A)]), partition=1)})
        assert index.newest.states[0] == "cleanup"
    assert steps > 3
    assert index.newest.states == {1: "active", 2: "passive"}
    assert len(rows_of(index)) == 2000 + steps
    assert sound(index, store)
    assert index.clean_step(11)


# -- failures


def test_a_commit_that_fails_changes_nothing(index, store):
    publish(index, {0: part(0, 5, (b"d", [row(A)]))})
    header = index.newest

    def fail(effect):
        if effect == COMMIT:
            raise UnavailableError("full", code="disk_full")

    store.before = fail
    for call in (
        lambda: publish(index, {0: part(5, 9, (b"d", []))}),
        lambda: index.roll_back({0: Judged((FailoverEntry(9, 0, 9),), 0)}, 9),
        lambda: index.set_states([0], [], 9),
        lambda: index.take_over("x", 9),
    ):
        with pytest.raises(UnavailableError):
            call()
        assert index.newest is header
    store.before = lambda _: None
    assert rows_of(index).keys() == {(A, b"d")}
    publish(index, {0: part(5, 9, (b"d", [row(B)]))})
    assert rows_of(index).keys() == {(B, b"d")}
    assert opened(store.durable()).newest == index.newest


@pytest.mark.parametrize(
    "header_commit",
    [
        lambda index: index.set_states([0, 1, 2], [], 9),
        lambda index: index.take_over("test", 9),
        lambda index: index.roll_back({0: Judged((FailoverEntry(9, 0, 9),), 0)}, 9),
    ],
)
def test_an_interrupted_update_keeps_the_old_rows(header_commit):
    store = MemoryIndexStore()
    index = opened(store, KeptBounds(1, 1))
    index.set_states([0, 1], [2], 6)
    index.take_over("test", 7)
    publish(index, {0: part(0, 5, *[(b"d%d" % n, [row(A), row(B, tree=1)]) for n in range(9)])})
    missing = index.newest.trees[1].number
    node = store.nodes.pop(missing)
    index._commits.cache.clear()
    with pytest.raises(CorruptionError):  # tree 0 has been changed by then
        publish(index, {0: part(5, 9, (b"d1", []))})
    store.nodes[missing] = node
    header_commit(index)
    publish(index, {1: part(0, 5, partition=1)})
    index._commits.cache.clear()
    assert len(rows_of(index)) == 9
    assert sound(index, store)


def test_a_missing_node_is_reported_and_nothing_is_committed(index, store):
    publish(index, {0: part(0, 5, (b"d", [row(A)]))})
    commit = index.newest.commit
    del store.nodes[index.newest.trees[0].number]
    index._commits.cache.clear()
    with pytest.raises(CorruptionError):
        publish(index, {0: part(5, 9, (b"d", []))})
    assert index.newest.commit == commit


def test_compaction_and_sizes_are_the_store_s(index):
    publish(index, {0: part(0, 5, (b"d", [row(A)]))})
    while not index.compact_step(1):
        pass
    assert index.sizes().nodes == 2
    assert rows_of(index).keys() == {(A, b"d")}
