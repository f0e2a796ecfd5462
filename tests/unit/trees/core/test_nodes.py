from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import CorruptionError
from millstream.trees.core import nodes as nodes_module
from millstream.trees.core.nodes import (
    CommitNodes,
    InnerNode,
    LeafNode,
    NodeCache,
    Nodes,
    decode_inner,
    decode_leaf,
    decode_values,
    inner_body,
    leaf_body,
    sealed,
    set_of,
)
from support.views.tree_model import Store

LEAF = leaf_body([b"a", b"b"], [b"1", b""], [3, 700])
INNER = inner_body([b"b", b"f"], [4, 9], [2, 70], [1 << 3, 1 << 700], [b"x", b""])

rows = st.lists(st.tuples(st.binary(max_size=300), st.binary(max_size=300), st.integers(0, 65535)))
children = st.lists(
    st.tuples(
        st.binary(max_size=300),
        st.integers(0, 2**63),
        st.integers(1, 2**40),
        st.integers(1, 2**1024 - 1) | st.integers(1, 2**64 - 1),
        st.binary(max_size=300),
    ),
    min_size=1,
    max_size=70,
)


@given(rows.filter(bool), st.integers(0, 2**40))
def test_a_leaf_comes_back_from_its_bytes(
    rows: list[tuple[bytes, bytes, int]], number: int
) -> None:
    keys, values, partitions = map(list, zip(*rows, strict=True))
    body, node = leaf_body(keys, values, partitions)
    data = sealed(number, body)
    back = decode_leaf(number, data)
    assert (back.keys, back.values, list(back.partitions)) == (keys, values, partitions)
    assert list(back.partitions) == list(node.partitions)
    assert back.size == len(data)


@given(children)
def test_an_inner_node_comes_back_from_its_bytes(
    children: list[tuple[bytes, int, int, int, bytes]],
) -> None:
    body, node = inner_body(*map(list, zip(*children, strict=True)))
    assert decode_inner(5, sealed(5, body)) == node
    assert node.size == len(sealed(5, body))


def test_partitions_of_rows_take_one_byte_each_where_that_is_enough() -> None:
    _, narrow = leaf_body([b"a", b"b"], [b"", b""], [3, 255])
    assert narrow.partitions == b"\x03\xff"
    body, wide = leaf_body([b"a"], [b""], [256])
    assert wide.partitions == [256]
    assert decode_leaf(1, sealed(1, body)).partitions == (256,)


def test_bitmap_of_partitions() -> None:
    assert set_of([5, 0, 5, 1000]) == 1 | 1 << 5 | 1 << 1000


@pytest.mark.parametrize("decode", [decode_leaf, decode_inner])
@pytest.mark.parametrize("body", [LEAF[0], INNER[0]])
def test_every_flipped_bit_and_every_cut_is_found(decode, body) -> None:  # type: ignore[no-untyped-def]
    data = sealed(7, body)
    for at in range(8 * len(data)):
        spoiled = bytearray(data)
        spoiled[at // 8] ^= 1 << at % 8
        with pytest.raises(CorruptionError, match="node 7"):
            decode(7, bytes(spoiled))
    for end in range(len(data)):
        with pytest.raises(CorruptionError):
            decode(7, data[:end])


def test_a_node_under_the_number_of_another_is_found() -> None:
    with pytest.raises(CorruptionError, match="checksum"):
        decode_leaf(8, sealed(7, LEAF[0]))


def test_a_leaf_is_not_taken_for_an_inner_node() -> None:
    with pytest.raises(CorruptionError, match="no inner node"):
        decode_inner(7, sealed(7, LEAF[0]))
    with pytest.raises(CorruptionError, match="no leaf"):
        decode_leaf(7, sealed(7, INNER[0]))


@pytest.mark.parametrize(
    "body",
    [
        leaf_body([b"a"], [b"1", b"2"], b"\x00")[0],
        leaf_body([b"a", b"b", b"c"], [b"1", b"2", b"3"], b"\x00")[0],
        leaf_body([], [], b"")[0],
    ],
)
def test_a_leaf_whose_lists_differ_is_refused(body: bytes) -> None:
    with pytest.raises(CorruptionError, match="differ"):
        decode_leaf(7, sealed(7, body))


@pytest.mark.parametrize(
    "body",
    [
        inner_body([b"a"], [1, 2], [1], [1], [b""])[0],
        inner_body([b"a", b"b"], [1, 2], [1, 1], [1 << 99], [b"", b""])[0],
        inner_body([b"a"], [1], [0], [1], [b""])[0],
        inner_body([b"a"], [-1], [1], [1], [b""])[0],
    ],
)
def test_an_inner_node_that_cannot_be_is_refused(body: bytes) -> None:
    with pytest.raises(CorruptionError, match="node 7"):
        decode_inner(7, sealed(7, body))


@given(st.binary(max_size=200) | st.builds(bytes, st.just(LEAF[0]) | st.just(INNER[0])), st.data())
def test_any_bytes_with_a_right_checksum_give_a_node_or_corruption(
    body: bytes, data: st.DataObject
) -> None:
    spoiled = bytearray(body)
    for at in data.draw(st.lists(st.integers(0, max(0, len(body) - 1)), max_size=4)):
        if body:
            spoiled[at] = data.draw(st.integers(0, 255))
    for decode in (decode_leaf, decode_inner):
        with suppress(CorruptionError):
            node = decode(7, sealed(7, bytes(spoiled)))
            assert len({len(column) for column in node[:-1]}) == 1


def test_a_cache_keeps_what_is_used_within_its_bytes() -> None:
    cache = NodeCache(bytes_max=100_000)
    node = LEAF[1]
    for number in range(5000):
        cache.put(number, node)
        assert cache.get(0) is node
    kept = [number for number in range(5000) if cache.get(number)]
    assert 4999 in kept
    assert len(kept) < 100_000 / node.size
    cache.clear()
    assert cache.get(0) is None


def test_nodes_are_read_once_and_fresh_ones_not_kept() -> None:
    store, cache = Store(), NodeCache()
    store[1], store[2] = sealed(1, LEAF[0]), sealed(2, INNER[0])
    nodes = Nodes(store, cache)
    for _ in range(2):
        assert isinstance(nodes.leaf(1), LeafNode)
        assert isinstance(nodes.inner(2), InnerNode)
    assert store.reads == 2
    fresh = Nodes(store, cache, {3: sealed(3, LEAF[0])})
    assert fresh.leaf(3).keys == [b"a", b"b"]
    assert cache.get(3) is None
    with pytest.raises(CorruptionError, match="level"):
        nodes.leaf(2)
    with pytest.raises(CorruptionError, match="level"):
        nodes.inner(1)


def test_leaves_that_a_commit_reads_are_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes_module, "COMMIT_LEAVES_MAX", 2)
    store, cache = Store(), NodeCache()
    store[9] = sealed(9, INNER[0])
    store.update({number: sealed(number, LEAF[0]) for number in (1, 2, 3)})
    commit = CommitNodes(cache)
    for nodes in (Nodes(store, commit), Nodes(store, commit, {})):
        nodes.inner(9)
        for number in (1, 2, 3):
            nodes.leaf(number)
    assert store.reads == 5  # the third leaf twice
    assert [number for number in (1, 2, 3, 9) if cache.get(number)] == [9]
    cache.put(3, LEAF[1])
    assert CommitNodes(cache).get(3) is LEAF[1]


@given(rows)
def test_values_are_taken_without_keys(given_rows: list[tuple[bytes, bytes, int]]) -> None:
    if not given_rows:
        return
    body, node = leaf_body(*map(list, zip(*given_rows, strict=True)))
    values, partitions = decode_values(5, sealed(5, body))
    assert (values, list(partitions)) == (node.values, list(node.partitions))


def test_damage_is_found_where_only_values_are_taken() -> None:
    data = sealed(1, LEAF[0])
    for at in range(len(data)):
        broken = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        with pytest.raises(CorruptionError):
            decode_values(1, broken)
        with pytest.raises(CorruptionError):
            decode_values(1, data[:at])
    for body in (b"\x93\x90\x90\xc4\x00", b"\x93\x90\x91\xc4\x01a\xc4\x03abc", b"\x90", INNER[0]):
        with pytest.raises(CorruptionError):
            decode_values(1, sealed(1, body))
