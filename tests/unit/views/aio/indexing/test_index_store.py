import lmdb
import pytest

from millstream.errors import CorruptionError, UnavailableError
from millstream.views.aio.indexing import index_store
from millstream.views.aio.indexing.index_store import LmdbIndexStore
from millstream.views.core.index.kept_roots import FreeList
from millstream.views.core.index.node_store import StoreCommit

MAP_BYTES = 16 * 1024 * 1024


@pytest.fixture
def path(tmp_path):
    return tmp_path / "indexes" / "signature"


def opened(path, signature="signature", collation="collation", map_bytes=MAP_BYTES):
    return LmdbIndexStore(path, signature, collation, map_bytes=map_bytes)


def node(number):
    return b"node %d " % number + bytes(1000)


def nodes(*numbers):
    return {number: node(number) for number in numbers}


def test_a_commit_is_there_when_opened_again(path):
    store = opened(path)
    assert store.stored() == ({}, {})
    store.commit(StoreCommit(0, b"header 0"))
    store.commit(StoreCommit(1, b"header 1", nodes(1, 2, 3), {1: b"free"}))
    store.close()
    store = opened(path)
    assert not store.rebuilt_because
    assert store.stored() == ({0: b"header 0", 1: b"header 1"}, {1: b"free"})
    assert [store.read(number) for number in (1, 2, 3)] == [node(1), node(2), node(3)]
    store.commit(
        StoreCommit(
            2, b"header 2", nodes(4), dropped_headers=[0], dropped_free_lists=[1],
            removed=[FreeList((1, 77)), FreeList(ranges=((2, 3), (50, 60)))],
        )
    )  # fmt: skip
    assert store.stored() == ({1: b"header 1", 2: b"header 2"}, {})
    assert (store.read(3), store.read(4)) == (node(3), node(4))
    for number in (1, 2):
        with pytest.raises(CorruptionError, match=rf"node {number} is missing.*remove that dir"):
            store.read(number)
    store.close()


def test_nodes_written_ahead_are_removed_from_a_number_on(path):
    store = opened(path)
    store.write_ahead(nodes(1, 2, 3))
    store.remove_from(2)
    store.remove_from(2)
    assert store.read(1) == node(1)
    with pytest.raises(CorruptionError):
        store.read(3)
    store.close()


def test_the_number_of_a_node_is_given_once(path):
    store = opened(path)
    store.commit(StoreCommit(0, b"header 0", nodes(1, 2, 3)))
    with pytest.raises(AssertionError, match="given before"):
        store.commit(StoreCommit(1, b"header 1", nodes(2)))
    assert sorted(store.stored().headers) == [0]
    store.close()


@pytest.mark.parametrize(
    ("signature", "collation", "why"),
    [("another", "collation", "signature"), ("signature", "another", "collation")],
)
def test_an_index_of_another_definition_is_rebuilt(path, signature, collation, why):
    store = opened(path)
    store.commit(StoreCommit(0, b"header", nodes(1)))
    store.close()
    store = opened(path, signature, collation)
    assert store.rebuilt_because == f"{why} {why!r} is not 'another'"
    assert store.stored() == ({}, {})
    store.close()
    store = opened(path, signature, collation)
    assert not store.rebuilt_because
    store.close()


def test_an_index_of_another_format_is_rebuilt(path, monkeypatch):
    store = opened(path)
    store.commit(StoreCommit(0, b"header", nodes(1)))
    store.close()
    monkeypatch.setattr(index_store, "INDEX_FORMAT", 99)
    store = opened(path)
    assert store.rebuilt_because == "format 1 is not 99"
    store.close()


@pytest.mark.parametrize("damage", ["cut", "zeros", "empty"])
def test_an_error_about_damage_says_what_to_do(path, damage):
    store = opened(path)
    store.commit(StoreCommit(0, b"header", nodes(*range(1, 200))))
    store.close()
    file = path / "1" / "data.mdb"
    size = file.stat().st_size
    with file.open("r+b") as data:
        if damage == "cut":
            data.truncate(size - 40_960)
        elif damage == "zeros":
            data.write(bytes(8192))
        else:
            environment = lmdb.open(str(path / "1"), map_size=MAP_BYTES)
            with environment.begin(write=True) as transaction:
                transaction.delete(b"m")
            environment.close()
    with pytest.raises(CorruptionError, match=r"is damaged: .*remove that directory") as raised:
        opened(path)
    assert raised.value.code == "index_damaged"
    LmdbIndexStore.remove(path)
    store = opened(path)
    assert store.stored() == ({}, {})
    store.close()


def test_a_full_disk_changes_nothing(path):
    store = opened(path, map_bytes=512 * 1024)
    store.commit(StoreCommit(0, b"header 0", nodes(1)))
    with pytest.raises(UnavailableError) as raised:
        store.commit(StoreCommit(1, b"header 1", nodes(*range(2, 2000))))
    assert raised.value.code == "disk_full"
    assert store.stored() == ({0: b"header 0"}, {})
    store.commit(StoreCommit(1, b"header 1", nodes(2)))
    assert store.read(2) == node(2)
    store.close()


def test_compaction_gives_space_back_while_commits_go_on(path):
    store = opened(path)
    store.commit(StoreCommit(0, b"header 0", nodes(*range(1, 1001))))
    removed = FreeList(tuple(range(1, 901)))
    store.commit(StoreCommit(1, b"header 1", nodes(1001), removed=[removed]))
    before = store.sizes()
    assert before.used_bytes < before.file_bytes / 2
    assert not store.compact_step(60)
    store.commit(StoreCommit(2, b"header 2", nodes(1002), {2: b"free"}, dropped_headers=[0],
                             removed=[FreeList((901, 1001))]))  # fmt: skip
    steps = 0
    while not store.compact_step(30):
        steps += 1
        store.commit(StoreCommit(3 + steps, b"more", nodes(1002 + steps)))
    assert steps == 1
    after = store.sizes()
    assert after.file_bytes < before.file_bytes / 3
    for number in (*range(902, 1001), 1002, 1003):
        assert store.read(number) == node(number)
    for number in (1, 901, 1001):
        with pytest.raises(CorruptionError):
            store.read(number)
    stored = ({1: b"header 1", 2: b"header 2", 4: b"more"}, {2: b"free"})
    assert store.stored() == stored
    assert [each.name for each in path.iterdir()] == ["2"]
    store.close()
    store = opened(path)
    assert store.stored() == stored
    while not store.compact_step(1000):
        pass
    assert store.stored() == stored
    store.close()


def test_an_unfinished_compaction_leaves_no_files(path):
    store = opened(path)
    store.commit(StoreCommit(0, b"header 0", nodes(*range(1, 100))))
    assert not store.compact_step(10)
    assert sorted(each.name for each in path.iterdir()) == ["1", "2.new"]
    store.close()
    assert [each.name for each in path.iterdir()] == ["1"]
    (path / "2.new").mkdir()
    store = opened(path)
    assert [each.name for each in path.iterdir()] == ["1"]
    assert store.read(99) == node(99)
    store.close()


@pytest.mark.parametrize("fails", ["_copy_some", "_take_place"])
def test_a_failed_compaction_is_abandoned(path, monkeypatch, fails):
    store = opened(path)
    store.commit(StoreCommit(0, b"header 0", nodes(1, 2)))
    with monkeypatch.context() as patch:

        def fail(*_):
            raise UnavailableError("no space", code="disk_full")

        patch.setattr(LmdbIndexStore, fails, fail)
        with pytest.raises(UnavailableError):
            store.compact_step(10)
    assert [each.name for each in path.iterdir()] == ["1"]
    store.commit(StoreCommit(1, b"header 1", nodes(3)))
    assert store.compact_step(10)
    assert store.read(3) == node(3)
    store.close()
    store = opened(path)
    assert sorted(store.stored().headers) == [0, 1]
    store.close()


def test_the_old_environment_stays_if_the_new_name_is_not_durable(path, monkeypatch):
    store = opened(path)
    store.commit(StoreCommit(0, b"header 0", nodes(1)))
    with monkeypatch.context() as patch:

        def fail(_):
            raise OSError("no")

        patch.setattr(index_store, "sync_directory", fail)
        with pytest.raises(OSError, match="no"):
            store.compact_step(10)
    assert [each.name for each in path.iterdir()] == ["1"]
    store.commit(StoreCommit(1, b"header 1", nodes(2)))
    store.close()
    store = opened(path)
    assert store.read(2) == node(2)
    store.close()


def test_after_a_kill_the_newer_of_two_generations_counts(path):
    store = opened(path)
    store.commit(StoreCommit(0, b"header 0", nodes(1)))
    store.close()
    (path / "1").rename(path / "7")
    (path / "3").mkdir()
    store = opened(path)
    assert store.read(1) == node(1)
    assert [each.name for each in path.iterdir()] == ["7"]
    store.close()


def test_lack_of_address_space_is_not_damage(path, tmp_path):
    small = opened(path)
    small.commit(StoreCommit(0, b"header 0"))
    small.close()
    large = opened(tmp_path / "large", map_bytes=1 << 46)
    try:
        with pytest.raises(UnavailableError, match="remove indexes") as raised:
            opened(path, map_bytes=1 << 46)
    finally:
        large.close()
    assert raised.value.code == "too_many_indexes"
    again = opened(path)
    assert again.stored() == ({0: b"header 0"}, {})
    again.close()
