"""Frames of writes of different kinds."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.client import writes as client_writes
from millstream.client.documents import FLAGS_BINARY, durability_framing
from millstream.client.writes import (
    GivenWrite,
    Write,
    each_encoder,
    is_done,
    is_one_request,
    live_cas,
    meta_encoder,
)
from millstream.errors import ConditionError, UsageError
from millstream.kv.core.partition.with_meta import given_change
from millstream.model.lineage import born
from millstream.model.partitions import partition_of
from millstream.wire.mcbp import Opcode, Status, cut_packets, response

writes = st.builds(
    Write,
    key=st.binary(min_size=1, max_size=250),
    value=st.none() | st.binary(max_size=300),
    flags=st.integers(0, 2**32 - 1),
    datatype=st.integers(0, 1),
    expiry=st.integers(0, 2**32 - 1),
    cas=st.integers(0, 2**64 - 1),
    is_insert=st.booleans(),
)


@given(writes, st.integers(0, 2**32 - 1), st.booleans(), st.booleans())
def test_a_frame_has_what_the_write_says(
    write: Write, opaque: int, is_durable: bool, keep_json: bool
) -> None:
    framing = durability_framing("persisted" if is_durable else "memory", 2.0)
    partition_id, frame = each_encoder(64, framing=framing, keep_json=keep_json)(write, opaque)
    (packet,), rest = cut_packets(frame, 1_000_000)
    assert not rest
    assert partition_id == packet.vbucket == partition_of(write.key, 64)
    assert (packet.key, packet.opaque, packet.framing) == (write.key, opaque, framing)
    assert packet.cas == write.cas
    if write.value is None:
        assert (packet.opcode, packet.extras, packet.value) == (Opcode.DELETE, b"", b"")
        return
    assert packet.opcode == (Opcode.ADD if write.is_insert else Opcode.SET)
    assert packet.value == write.value
    assert packet.extras == write.flags.to_bytes(4, "big") + write.expiry.to_bytes(4, "big")
    assert packet.datatype == (write.datatype if keep_json else 0)


@given(
    st.builds(
        GivenWrite,
        key=st.binary(min_size=1, max_size=250),
        value=st.binary(max_size=300),
        flags=st.integers(0, 2**32 - 1),
        datatype=st.integers(0, 1),
        expiry=st.integers(0, 2**32 - 1),
        cas=st.integers(1, 2**63 - 1),
        rev=st.integers(1, 2**63 - 1),
        lineage=st.just(born(7, 9)),
        is_insert=st.booleans(),
    ),
    st.integers(0, 2**32 - 1),
)
def test_what_a_document_had_elsewhere_is_in_its_frame(write: GivenWrite, opaque: int) -> None:
    partition_id, frame = each_encoder(64, framing=b"", keep_json=True)(write, opaque)
    (packet,), rest = cut_packets(frame, 1_000_000)
    assert not rest
    assert partition_id == packet.vbucket == partition_of(write.key, 64)
    opcode = Opcode.ADD_WITH_META if write.is_insert else Opcode.SET_WITH_META
    assert (packet.opcode, packet.key, packet.cas) == (opcode, write.key, 0)
    assert (packet.datatype, packet.opaque) == (write.datatype, opaque)
    change = given_change(packet, knows_lineage=True)
    options = 0x80000008 if write.sidecar else 0x08
    assert change == (
        write.flags, write.expiry, write.rev, write.cas, options, write.value, write.lineage,
        write.sidecar,
    )  # fmt: skip


@pytest.mark.parametrize(("is_insert", "options"), [(False, 0x80000008), (True, 0x80000000)])
def test_a_deletion_as_it_was_elsewhere_has_its_time_and_sidecar(
    is_insert: bool, options: int
) -> None:
    write = GivenWrite(b"k", None, 0, 0, 77, 5, 6, born(7, 9), is_insert, b"side")
    _, frame = each_encoder(64, framing=b"", keep_json=True)(write, 1)
    (packet,), _ = cut_packets(frame, 1_000)
    assert packet.opcode == Opcode.DEL_WITH_META
    found = given_change(packet, knows_lineage=True)
    assert found == (0, 77, 6, 5, options, b"", born(7, 9), b"side")


def test_value_and_sidecar_share_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_writes, "WRITE_BYTES_MAX", 5)
    write = GivenWrite(b"k", b"123", 0, 0, 0, 5, 6, b"")
    assert is_one_request(write._replace(sidecar=b"45"))
    assert not is_one_request(write._replace(sidecar=b"456"))
    assert not is_one_request(write._replace(value=None, sidecar=b"123456"))


def test_a_key_that_cannot_be_is_refused_before_it_is_sent() -> None:
    with pytest.raises(UsageError) as failed:
        each_encoder(64, framing=b"", keep_json=True)(Write(b"", b"1"), 1)
    assert failed.value.code == "bad_key"


def answer(status: int) -> Any:
    ((packet,), _) = cut_packets(response(Opcode.SET, status, 1), 1_000)
    return packet


def test_what_is_not_there_is_deleted_already_unless_a_cas_says_it_is_there() -> None:
    assert is_done(Write(b"k", b"1"), answer(Status.SUCCESS))
    assert not is_done(Write(b"k", b"1"), answer(Status.KEY_ENOENT))
    assert is_done(Write(b"k", None), answer(Status.KEY_ENOENT))
    assert not is_done(Write(b"k", None, cas=5), answer(Status.KEY_ENOENT))
    assert not is_done(Write(b"k", None), answer(Status.ETMPFAIL))


def test_writes_through_a_client(node: Any, client: Any) -> None:
    mine = [
        Write(b"a", b"1"),
        Write(b"b", b"\xff", FLAGS_BINARY, 0, expiry=9),
        Write(b"gone", None),
    ]
    results = dict(client.write_each(mine, durability="persisted"))
    assert list(results) == mine
    assert results[mine[0]].seqno > 0
    node.handlers[Opcode.ADD] = lambda packet: response(
        Opcode.ADD, Status.KEY_EEXISTS, packet.opaque
    )
    ((_, refused),) = client.write_each([Write(b"a", b"2", is_insert=True)])
    assert isinstance(refused, ConditionError)
    assert refused.code == "key_exists"
    assert "'a' in bucket 'flights'" in str(refused)


def test_the_cas_of_documents_without_their_values(node: Any, client: Any) -> None:
    def meta(packet: Any) -> bytes:
        if packet.key == b"none":
            return response(packet.opcode, Status.KEY_ENOENT, packet.opaque)
        if packet.key == b"bad":
            return response(packet.opcode, Status.EACCESS, packet.opaque)
        deleted = (packet.key == b"deleted").to_bytes(4, "big")
        return response(packet.opcode, 0, packet.opaque, cas=77, extras=deleted + bytes(16))

    node.handlers[Opcode.GET_META] = meta
    assert client.cas_many([b"k", b"none", b"deleted"]) == {b"k": 77}
    with pytest.raises(Exception, match="get_meta 'bad'"):
        client.cas_many([b"bad"])
    _, frame = meta_encoder(8)((b"k",), 3)
    ((packet,), _) = cut_packets(frame, 1_000)
    assert (packet.opcode, packet.key, packet.opaque) == (Opcode.GET_META, b"k", 3)
    assert live_cas(answer(0)._replace(cas=5, extras=bytes(20))) == 5
