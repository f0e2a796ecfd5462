from hypothesis import given
from hypothesis import strategies as st

from millstream.trees.core.editing import edited
from millstream.trees.core.nodes import LeafNode, leaf_body, set_of
from millstream.trees.core.shapes import Operation

keys = st.integers(0, 20).map(lambda number: b"%02d" % number)
partitions = st.sampled_from([0, 1, 2, 3, 4, 5, 255, 256, 1000])
rows = st.tuples(partitions, st.binary(max_size=2))


def made(rows: dict[bytes, tuple[int, bytes]]) -> LeafNode | None:
    if not rows:
        return None
    listed = sorted(rows)
    parts = [rows[key][0] for key in listed]
    return leaf_body(listed, [rows[key][1] for key in listed], parts)[1]


@given(st.dictionaries(keys, rows), st.dictionaries(keys, st.none() | rows), st.sets(partitions))
def test_rows_and_partitions_afterwards(
    before: dict[bytes, tuple[int, bytes]],
    changes: dict[bytes, tuple[int, bytes] | None],
    clean: set[int],
) -> None:
    node = made(before)
    operations: list[Operation] = [
        (key, *row) if (row := changes[key]) else (key, 0, None) for key in sorted(changes)
    ]
    after = {key: row for key, row in before.items() if row[0] not in clean}
    after.update((key, row) for key, row in changes.items() if row)
    for key, row in changes.items():
        if row is None:
            after.pop(key, None)
    bitmap = set_of([row[0] for row in before.values()])
    found = edited(node, bitmap, operations, set_of([*clean]))
    assert node == made(before)
    if found is None:
        assert after == before
        return
    leaf, bitmap = found
    assert leaf.keys == sorted(after)
    assert [*zip(leaf.partitions, leaf.values, strict=True)] == [after[key] for key in leaf.keys]
    assert bitmap == set_of(leaf.partitions)
    if clean.isdisjoint(row[0] for row in before.values()):
        assert after != before


def test_a_new_value_alone_shares_keys_and_partitions() -> None:
    node = leaf_body([b"a", b"b"], [b"1", b"2"], [0, 1])[1]
    found = edited(node, 0b11, [(b"b", 1, b"3")], 0)
    assert found is not None
    assert found[0].keys is node.keys
    assert found[0].values == [b"1", b"3"]
    assert node.values == [b"1", b"2"]
