import msgspec
import pytest

from millstream.trees.core.shapes import NO_REDUCER
from millstream.trees.core.writer import TreeWriter
from millstream.views.core.collation import encode_key
from millstream.views.core.index.back_index import back_key, back_value
from millstream.views.core.index.header import decode_header, encode_header
from millstream.views.core.index.index_check import check_index, reducers_of
from millstream.views.core.index.kept_roots import FreeList, encode_free_list
from support.views.filled_index import SHAPE, fill
from support.views.memory_index_store import MemoryIndexStore


@pytest.fixture
def store():
    made = MemoryIndexStore()
    fill(made)
    return made


def checked(store):
    return check_index(store, SHAPE.signature)


def changed(store, **values):
    """Change the newest header in the store."""
    commit = max(store.headers)
    header = decode_header(store.headers[commit])
    store.headers[commit] = encode_header(msgspec.structs.replace(header, **values))


def newest(store):
    return decode_header(store.headers[max(store.headers)])


def test_a_sound_index(store):
    found = checked(store)
    assert not found.damage
    assert (found.rows, found.documents, found.kept_roots) == ([200, 100], 200, 6)
    assert (found.commit, found.nodes, found.unused_nodes) == (5, len(store.nodes), 0)


def test_an_index_that_was_never_begun():
    assert not checked(MemoryIndexStore()).damage


def test_nodes_of_a_killed_commit_are_counted(store):
    store.nodes[newest(store).next_node + 3] = b"left over"
    found = checked(store)
    assert (found.damage, found.unused_nodes) == ("", 1)


def test_a_missing_node_of_an_old_root(store):
    kept = decode_header(store.headers[3])
    assert kept.trees[0] != newest(store).trees[0]
    del store.nodes[kept.trees[0].number]
    assert "is missing" in checked(store).damage


@pytest.mark.parametrize("commit", [3, None])
def test_a_damaged_node(store, commit):
    header = decode_header(store.headers[commit]) if commit else newest(store)
    number = header.trees[1].number
    store.nodes[number] = store.nodes[number][:-1] + b"x"
    assert "checksum" in checked(store).damage


def test_headers_with_wrong_members(store):
    for values, match in (
        ({"commit": 77}, "says it is 77"),
        ({"signature": "x"}, "is of x"),
        ({"positions": {}}, "different partitions"),
        ({"void": 1 << 9}, "different partitions"),
        ({"next_node": 2}, "node too large"),
    ):
        before = dict(store.headers)
        changed(store, **values)
        assert match in checked(store).damage
        store.headers = before
    store.headers[max(store.headers)] = b"rubbish"
    assert "header" in checked(store).damage


def test_rows_of_a_partition_that_is_not_here(store):
    header = newest(store)
    without = {
        name: {p: each for p, each in getattr(header, name).items() if p != 3}
        for name in ("states", "positions", "failover_logs", "purge_seqnos")
    }
    changed(store, **without)
    assert "unknown partitions [3]" in checked(store).damage


def test_reductions_are_compared_unless_they_are_functions(store):
    header = newest(store)
    assert reducers_of(SHAPE.reduces[1]) == ()
    trees = (header.trees[0], header.trees[1]._replace(partial=b"\x92\x01\x02"))
    changed(store, trees=trees)
    assert not checked(store).damage
    changed(store, trees=(header.trees[0]._replace(partial=b"\x92\x01\x02"), header.trees[1]))
    assert "the root's partial" in checked(store).damage


def test_the_setting_of_the_limit_does_not_matter(store):
    strict, lax = reducers_of(["_sum"])
    assert (strict._limit, lax._limit) == ("true", "false")


def test_a_back_index_that_names_other_rows(store):
    header = newest(store)
    writer = TreeWriter(store, header.next_node)
    entry = back_value({0: [encode_key(5)]})
    back = writer.apply(header.back, [(back_key(0, b"document-00000"), 0, entry)], NO_REDUCER)
    store.nodes |= writer.written
    changed(store, back=back, next_node=writer.next_number)
    assert "back-index names other rows" in checked(store).damage


def test_a_free_list_with_a_node_that_is_needed(store):
    number = newest(store).trees[0].number
    commit = max(store.free_lists)
    for free in (FreeList((number,)), FreeList(ranges=((number, number + 1),))):
        store.free_lists[commit] = encode_free_list(free)
        assert f"free list {commit} names nodes" in checked(store).damage
