from __future__ import annotations

from collections.abc import Callable, Collection

import pytest

from millstream.documents.stored import pack
from millstream.errors import CorruptionError
from millstream.kv.core.partition.blobs import NOT_KEPT, BlobsMissing
from millstream.kv.core.partition.partition import Partition
from millstream.model.lineage import born
from millstream.model.partitions import PartitionState
from millstream.model.position import FailoverEntry
from millstream.model.sides import side_of
from millstream.wire.frames import mutation
from support.http.revised_documents import attachment, signature, with_leaf
from support.kv.log_double import BRANCH, LogDouble

ONE, TWO = attachment(b"one").sha256, attachment(b"two").sha256


class BlobsDouble:
    def __init__(self) -> None:
        self.here: set[bytes] = set()
        self.asked: list[tuple[int, list[bytes]]] = []

    def missing(self, names: Collection[bytes]) -> list[bytes]:
        return sorted(set(names) - self.here)

    def bring(
        self, partition_id: int, names: Collection[bytes], done: Callable[[Exception | None], None]
    ) -> bool:
        self.asked.append((partition_id, list(names)))
        self.here.update(names)
        done(None)
        return True


def following() -> Partition:
    return Partition(
        0,
        failover_log=(FailoverEntry(0xABC, 0, BRANCH),),
        high_seqno=0,
        purge_seqno=0,
        is_resident=True,
        log=LogDouble(),
        state=PartitionState.REPLICA,
    )


def change(seqno: int, blobs: tuple[bytes, ...]) -> tuple[bytes, bytes]:
    """Return frame and side of a document with attachments."""
    packed = pack(with_leaf(None, "1-" + signature(seqno), blobs=blobs))
    frame = mutation(0, b"k%d" % seqno, packed.value or b"", seqno, 1, seqno, 0, 0, 1)
    return frame, side_of(born(7, seqno), packed.sidecar)


def test_a_change_waits_until_the_attachments_it_names_are_here() -> None:
    partition, blobs = following(), BlobsDouble()
    partition.blobs = blobs
    replica = partition.replica
    assert replica is not None
    replica.apply_marker(1, 9)
    with pytest.raises(BlobsMissing) as missing:
        replica.apply_change(*change(1, (b"one", b"two")))
    assert partition.queue.high_seqno == 0
    assert partition.is_linear
    told: list[Exception | None] = []
    assert missing.value.fetch(told.append)
    assert (told, blobs.asked) == ([None], [(0, sorted((ONE, TWO)))])
    replica.apply_change(*change(1, (b"one", b"two")))
    replica.apply_change(*change(2, (b"two",)))
    replica.apply_change(*change(3, ()))
    assert partition.queue.high_seqno == 3
    assert not partition.is_linear
    assert len(blobs.asked) == 1


def test_a_sidecar_that_cannot_be_read_is_not_taken() -> None:
    partition = following()
    replica = partition.replica
    assert replica is not None
    replica.apply_marker(1, 9)
    frame, _ = change(1, ())
    with pytest.raises(CorruptionError):
        replica.apply_change(frame, side_of(born(7, 1), b"none"))
    assert partition.queue.high_seqno == 0


def test_where_nobody_keeps_any_nothing_is_missing() -> None:
    assert NOT_KEPT.missing((ONE,)) == []
