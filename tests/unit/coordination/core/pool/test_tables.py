"""`coordination.core.pool.tables`: what all nodes are to know."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millstream.coordination.core.pool.messages import (
    GROUPS_MAX,
    NODES_MAX,
    POOL_IDS_MAX,
    TOMBSTONES_MAX,
    Address,
    Founding,
    NodeInfo,
    Tables,
)
from millstream.coordination.core.pool.tables import PoolTables, digest_of, fresh_pool_id

NOWHERE = Address("", 0)


def info(node: int, incarnation: int = 1, turn: int = 0, *, is_gone: bool = False) -> NodeInfo:
    address = Address(f"{incarnation}.{turn}", 1)
    return NodeInfo(bytes([node]) * 16, incarnation, turn, address, NOWHERE, is_gone)


ME = info(255)


def fresh() -> PoolTables:
    return PoolTables(ME)


infos = st.builds(
    info, st.integers(1, 4), st.integers(1, 3), st.integers(0, 1), is_gone=st.booleans()
)
records = st.builds(Founding, st.integers(1, 3), st.just((ME.node_id,)), st.just(True), st.just(0))
words = st.one_of(infos, records, records.map(lambda one: one.group_id))


def tell(tables: PoolTables, said: NodeInfo | Founding | bytes) -> None:
    match said:
        case NodeInfo():
            tables.note_node(said)
        case Founding():
            tables.note_founding(said)
        case bytes():
            tables.add_tombstone(said)


@given(st.lists(words, max_size=12), st.randoms())
def test_the_order_of_what_is_heard_does_not_matter(
    said: list[NodeInfo | Founding | bytes], order: object
) -> None:
    one, other = fresh(), fresh()
    for word in said:
        tell(one, word)
    again = [*said, *said[:3]]
    order.shuffle(again)  # type: ignore[attr-defined]
    for word in again:
        tell(other, word)
    assert one.message() == other.message()
    assert one.digest == digest_of(other.message(is_answer=True))
    assert not set(one.foundings) & set(one.tombstones)


def test_what_a_node_told_strangers_does_not_count_once_they_are_of_its_pool() -> None:
    tables = fresh()
    assert tables.note_node(info(1, turn=2, is_gone=True))  # of another pool, when it was told so
    assert tables.note_node(info(1, turn=2))
    assert not tables.note_node(info(1, turn=2, is_gone=True))
    assert tables.others() == [info(1, turn=2)]
    assert tables.note_node(info(1, turn=3, is_gone=True))  # it has left
    assert tables.others() == []


def test_a_node_believes_nobody_about_itself() -> None:
    tables = fresh()
    assert not tables.note_node(ME._replace(incarnation=9, is_gone=True))
    assert tables.me == ME


def test_a_node_that_left_makes_room_and_others_do_not() -> None:
    tables = fresh()
    ids = [number.to_bytes(16, "big") for number in range(1, NODES_MAX + 1)]
    for node_id in ids:
        tables.note_node(info(1)._replace(node_id=node_id))
    assert len(tables.nodes) == NODES_MAX
    assert tables.node(ids[-1]) is None
    tables.note_node(info(1, 2, is_gone=True)._replace(node_id=ids[0]))
    assert tables.note_node(info(1)._replace(node_id=ids[-1]))
    assert tables.node(ids[-1]) is not None
    assert ids[0] not in tables.nodes


def test_groups_and_tombstones_are_bounded() -> None:
    tables = fresh()
    for salt in range(GROUPS_MAX + 1):
        taken = tables.note_founding(Founding(1, (ME.node_id,), True, salt))
        assert taken == (salt < GROUPS_MAX)
    for number in range(TOMBSTONES_MAX):
        assert tables.add_tombstone(number.to_bytes(16, "big"))
    assert not tables.add_tombstone(b"t" * 16)


def test_who_leaves_keeps_what_is_here_in_a_pool_of_its_own() -> None:
    tables = fresh()
    kept = Founding(1, (ME.node_id,), True, 0)
    tables.note_founding(kept)
    tables.note_founding(kept._replace(number=2))
    tables.note_node(info(1))
    later = ME._replace(turn=1)
    tables.leave(later, [kept.group_id])
    assert tables.others() == []
    assert tables.message() == Tables(
        (fresh_pool_id(later),), (later,), (kept,), (), is_answer=False
    )


def test_pools_that_become_one_have_the_same_names_whoever_joined_whom() -> None:
    names = [number.to_bytes(16, "big") for number in range(POOL_IDS_MAX + 9)]
    one, other = PoolTables(ME), PoolTables(info(1))
    for name in names:
        one.unite((name,))
    for name in reversed(names):
        other.unite((name,))
    assert one.pool_ids == other.pool_ids
    assert len(one.pool_ids) == POOL_IDS_MAX
    assert one.is_of(other.pool_ids)
    assert not one.unite(other.pool_ids)
