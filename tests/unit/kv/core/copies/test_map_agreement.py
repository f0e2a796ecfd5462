from __future__ import annotations

from millstream.kv.core.copies import moves
from millstream.kv.core.copies.map_agreement import Places, left_over, places_of
from millstream.model.bucket_map import BucketMap, NodeAddress
from millstream.model.partitions import PartitionState
from support.kv.log_double import new_bucket

NODES = (NodeAddress("a", "h", 1, 2), NodeAddress("b", "h", 3, 4))


def test_alone_nothing_disagrees() -> None:
    bucket = new_bucket(4)
    assert places_of(bucket) == Places(0, 0, 0, 0, 0, 0)
    assert left_over(bucket) == []


def test_map_and_copies_are_compared() -> None:
    bucket = new_bucket(8)
    rows: tuple[tuple[str | None, ...], ...] = (
        *[("a", "b")] * 3, ("b", "a"), ("b", "a"), ("b", None), ("b", None), ("b", None),
    )  # fmt: skip
    bucket.set_map(BucketMap(9, NODES, rows), "a")
    states = {1: "REPLICA", 2: "ABSENT", 3: "REPLICA", 4: "ABSENT", 6: "DEAD", 7: "ABSENT"}
    for number, state in states.items():
        moves.rename(bucket.partitions[number], PartitionState[state])
    assert left_over(bucket) == [5, 6]
    assert places_of(bucket) == Places(
        revision=9, nodes=2, not_active=2, not_first=1, missing=2, left_over=2
    )
