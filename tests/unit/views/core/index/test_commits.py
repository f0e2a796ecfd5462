import msgspec
import pytest

from millstream.errors import CorruptionError, UnavailableError
from millstream.trees.core.check import live_nodes
from millstream.views.core.index import commits
from millstream.views.core.index.commits import SNAPSHOT_MS_MAX, Commits
from millstream.views.core.index.header import Header
from millstream.views.core.index.kept_roots import KeptBounds
from simulators.index_world import SHAPE
from support.views.memory_index_store import COMMIT, MemoryIndexStore

KEPT_2 = KeptBounds(2, 2)


def begun(store, bounds=KEPT_2):
    made = Commits(store, SHAPE.reducers, bounds)
    if not made.kept:
        made.begin(Header(signature="", collation="", reduces=(), trees=(None, None)))
    return made


def put(made, *rows, now_ms=0):
    """Commit rows of tree 0."""
    writer = made.writer()
    newest = made.newest
    operations = [(key, 0, value) for key, value in sorted(rows)]
    root = writer.apply(newest.trees[0], operations, SHAPE.reducers[0])
    made.commit(msgspec.structs.replace(newest, trees=(root, None)), now_ms)


def rows(snapshot):
    return {
        key: value
        for leaf in snapshot.tree(0).scan()
        for key, value in zip(leaf.keys, leaf.values, strict=True)
    }


def stored_is_live(store, made):
    live = {n for header in made.kept for root in header.roots for n in live_nodes(store, root)}
    return store.nodes.keys() == live


def test_each_commit_releases_old_roots():
    store = MemoryIndexStore()
    made = begun(store)
    for value in range(9):
        put(made, (b"a", b"%d" % value))
        assert stored_is_live(store, made)
    assert [header.commit for header in made.kept] == [8, 9]
    assert sorted(store.headers) == [8, 9]
    assert made.free_lists.keys() == {9} == store.free_lists.keys()
    assert (made.newest.nodes, made.newest.next_node) == (1, 10)


def test_inner_nodes_of_a_commit_are_not_read_again():
    store = MemoryIndexStore()
    made = begun(store)
    put(made, *((b"%04d" % n, b"%d" % n) for n in range(3000)))
    reads = []
    read, store.read = store.read, lambda number: reads.append(number) or read(number)
    put(made, (b"0500", b"7"))
    put(made, (b"1500", b"7"))
    assert len(reads) == 2  # two leaves


def test_a_snapshot_keeps_its_commit_until_it_is_closed():
    store = MemoryIndexStore()
    made = begun(store)
    put(made, (b"a", b"old"))
    with made.snapshot(0) as snapshot:
        for value in range(9):
            put(made, (b"a", b"%d" % value))
        assert rows(snapshot) == {b"a": b"old"}
        assert made.snapshots_open == 1
    assert made.snapshots_open == 0
    put(made, (b"a", b"new"))
    assert stored_is_live(store, made)
    snapshot.close()


def test_a_snapshot_reads_with_the_reductions_of_the_tree():
    made = begun(MemoryIndexStore())
    put(made, (b"a", b"1"), (b"b", b"2"))
    with made.snapshot(0) as snapshot:
        assert snapshot.tree(0).reduce((b"b", True)) == b"1"
        assert snapshot.tree(1).reduce() is None
        assert snapshot.back.count() == 0


def test_a_snapshot_open_too_long_is_closed():
    store = MemoryIndexStore()
    made = begun(store)
    put(made, (b"a", b"old"))
    snapshot = made.snapshot(0)
    reader = snapshot.tree(0)
    put(made, (b"a", b"1"), now_ms=SNAPSHOT_MS_MAX)
    assert not snapshot.is_expired
    put(made, (b"a", b"2"), now_ms=SNAPSHOT_MS_MAX + 1)
    made.cache.clear()
    with pytest.raises(UnavailableError) as raised:
        list(reader.scan())
    assert raised.value.code == "snapshot_expired"
    assert stored_is_live(store, made)


def test_a_snapshot_that_expires_while_a_node_is_read_is_not_damage():
    store = MemoryIndexStore()
    made = begun(store)
    put(made, (b"a", b"old"))
    snapshot = made.snapshot(0)
    put(made, (b"a", b"1"))
    read = store.read

    def read_late(number):
        store.read = read
        put(made, (b"a", b"2"), now_ms=SNAPSHOT_MS_MAX + 1)
        return read(number)

    number = snapshot.header.trees[0].number
    store.read = read_late
    with pytest.raises(UnavailableError) as raised:
        snapshot.read(number)
    assert raised.value.code == "snapshot_expired"


def test_the_number_of_snapshots_is_bounded(monkeypatch):
    monkeypatch.setattr(commits, "SNAPSHOTS_MAX", 2)
    made = begun(MemoryIndexStore())
    first, _ = made.snapshot(0), made.snapshot(0)
    with pytest.raises(UnavailableError) as raised:
        made.snapshot(0)
    assert raised.value.code == "too_many_snapshots"
    first.close()
    made.snapshot(0)


def test_a_snapshot_whose_header_goes_while_it_is_opened_is_of_the_next_one():
    made = begun(MemoryIndexStore(), KeptBounds(2, 2))
    put(made, (b"a", b"1"))
    put(made, (b"a", b"2"))
    release = made.release

    class Slow(list):
        """The next commits come between reading the newest header and looking for it."""

        def __iter__(self):
            made.kept = self[:]
            put(made, (b"a", b"3"))
            put(made, (b"a", b"4"))
            return iter(made.kept)

    made.kept = Slow(made.kept)
    released = []
    made.release = lambda snapshot: (released.append(snapshot.header.commit), release(snapshot))
    with made.snapshot(0) as snapshot:
        assert rows(snapshot) == {b"a": b"4"}
    assert released == [2, 4]


class Fails:
    """The store fails or the process ends at the next commit."""

    def __init__(self, error):
        self.error = error

    def __call__(self, effect):
        if effect == COMMIT and self.error is not None:
            error, self.error = self.error, None
            raise error


def test_a_commit_that_fails_changes_nothing_and_numbers_are_not_given_again():
    store = MemoryIndexStore()
    made = begun(store)
    put(made, (b"a", b"1"))
    store.before = Fails(UnavailableError("full", code="disk_full"))
    with pytest.raises(UnavailableError):
        put(made, (b"a", b"2"))
    assert made.newest.commit == 1
    with made.snapshot(0) as snapshot:
        assert rows(snapshot) == {b"a": b"1"}
    put(made, (b"a", b"3"))
    assert (made.newest.commit, made.newest.trees[0].number) == (2, 3)
    assert stored_is_live(store, made)
    assert begun(store.durable()).newest == made.newest


def test_nodes_of_an_uncommitted_load_are_removed(monkeypatch):
    monkeypatch.setattr("millstream.trees.core.writer.SINK_BYTES_MAX", 1)
    store = MemoryIndexStore()
    made = begun(store)
    many = [(b"%09d" % n, 0, bytes(300)) for n in range(20_000)]
    made.writer(is_load=True).load(many, SHAPE.reducers[0])
    assert store.nodes
    again = begun(store.durable())
    assert again.next_number == 1
    put(made, (b"a", b"1"))
    assert stored_is_live(store, made)
    root = made.writer(is_load=True).load(many, SHAPE.reducers[0])
    made.commit(msgspec.structs.replace(made.newest, trees=(made.newest.trees[0], root)), 0)
    assert stored_is_live(store, made)
    assert made.newest.nodes == len(set(live_nodes(store, root))) + 1
    after_kill = store.durable()
    again = begun(after_kill)
    assert again.newest == made.newest
    assert stored_is_live(after_kill, again)


def test_a_rollback_frees_later_nodes():
    store = MemoryIndexStore()
    made = begun(store, KeptBounds(4, 4))
    put(made, (b"a", b"1"))
    older = made.newest
    put(made, (b"a", b"2"))
    with made.snapshot(0) as snapshot:
        made.go_back(older, msgspec.structs.replace(older), 0)
        assert [header.commit for header in made.kept] == [0, 1, 3]
        assert made.newest.trees == older.trees
        for n in range(5):
            put(made, (b"b", b"%d" % n))
            assert rows(snapshot) == {b"a": b"2"}
    put(made, (b"b", b"last"))
    with made.snapshot(0) as snapshot:
        assert rows(snapshot) == {b"a": b"1", b"b": b"last"}
    assert stored_is_live(store, made)


def test_a_damaged_header_is_reported():
    store = MemoryIndexStore()
    begun(store)
    store.headers[0] = b"rubbish"
    with pytest.raises(CorruptionError):
        begun(store)
