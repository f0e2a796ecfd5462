from __future__ import annotations

from types import SimpleNamespace

import pytest

from millstream.documents.stored import pack
from millstream.errors import CorruptionError
from millstream.kv.core.partition.acknowledgement import Acknowledged
from millstream.kv.core.revisions.unused_blobs import UnnamedBlobs, have_reached, high_ends
from millstream.model.lineage import born
from millstream.model.sides import side_of
from support.http.revised_documents import attachment, signature, with_leaf

A, B, C = (attachment(data).sha256 for data in (b"a", b"b", b"c"))


def sidecar(*data: bytes) -> bytes:
    return pack(with_leaf(None, f"1-{signature(1)}", blobs=data)).sidecar


def test_what_is_found_or_relied_on_stays() -> None:
    unnamed = UnnamedBlobs([A, B, C])
    lineage = born(1, 1)
    unnamed.found_beside([lineage, side_of(lineage, sidecar(b"a"))])
    unnamed.found_in([b"", sidecar(), sidecar(b"b", b"other")])
    assert len(unnamed) == 1
    assert unnamed.take(5, ()) == [C]
    assert not unnamed
    unnamed.keep([A])
    assert unnamed.take(5, ()) == []


def test_what_is_being_put_is_not_taken_now_or_later() -> None:
    unnamed = UnnamedBlobs([A, B, C])
    taken = unnamed.take(1, {A})
    taken += unnamed.take(5, ())
    assert taken == [B, C], "in their order"


def test_what_cannot_be_read_may_name_anything() -> None:
    unnamed = UnnamedBlobs([A])
    with pytest.raises(CorruptionError) as unreadable:
        unnamed.found_in([b"\x09"])
    assert unreadable.value.code == "bad_sidecar"


class Partition:
    def __init__(self, high_seqno: int) -> None:
        self.high_seqno = self.persisted_seqno = high_seqno
        self.epoch = 1
        self.acknowledged: Acknowledged | None = None


def test_copies_that_follow_have_to_be_past_what_there_was() -> None:
    partitions = [Partition(7), Partition(3)]
    ends = high_ends(partitions)
    assert ends == [7, 3]
    assert have_reached(partitions, ends), "nobody follows"
    followed = partitions[0].acknowledged = Acknowledged(partitions[0])
    assert have_reached(partitions, ends)
    followed.join("x", "its stream")
    followed.join("y", "another")
    followed.acknowledge("x", "its stream", 9, 0)
    assert not have_reached(partitions, ends)
    followed.acknowledge("y", "another", 6, 6)
    assert not have_reached(partitions, ends)
    partitions[0].high_seqno = 6
    assert have_reached(partitions, ends), "it was rolled back: nobody will have seqno 7"
    partitions[0].high_seqno = 8
    followed.acknowledge("y", "another", 7, 0)
    assert have_reached(partitions, ends)


def test_a_copy_that_is_gone_is_not_waited_for() -> None:
    partition = Partition(7)
    followed = partition.acknowledged = Acknowledged(partition)
    followed.join("x", stream := SimpleNamespace())
    assert not have_reached([partition], [7])
    followed.leave("x", stream)
    assert have_reached([partition], [7])
