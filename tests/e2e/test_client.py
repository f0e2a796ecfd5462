"""The Python client against a real node: documents, users, positions, leases, ranges, consumer."""

from collections.abc import Callable, Iterator

import pytest

import millstream
from millstream.client.bulk import BulkReader, Range
from millstream.client.columns import Columns, cut_columns, decode_meta
from millstream.client.connection import Connection
from millstream.client.kv import Client
from millstream.errors import (
    AccessError,
    ConditionError,
    MillstreamError,
    RollbackRequiredError,
    StreamError,
)
from millstream.model.lineage import decode
from millstream.model.position import Position
from millstream.model.revision import Revisions
from millstream.upr import Consumer
from millstream.upr.aio.client import Changes
from millstream.wire.frames import change_of
from support.node.node_process import NodeProcess

MakeNode = Callable[..., NodeProcess]


def address_of(node: NodeProcess) -> str:
    host, port = node.kv
    return f"{host}:{port}"


@pytest.fixture
def node(shared_node: NodeProcess) -> NodeProcess:
    return shared_node


@pytest.fixture
def client(node: NodeProcess) -> Iterator[Client]:
    with millstream.connect(address_of(node), timeout_s=30) as made:
        yield made


def ranges_of(client: Client, lease_ids: dict[int, int] | None = None) -> list[Range]:
    return [
        Range(
            found.partition_id,
            Position(),
            found.high_seqno,
            lease_id=None if lease_ids is None else lease_ids[found.partition_id],
        )
        for found in client.positions()
        if found.high_seqno
    ]


def read(node: NodeProcess, ranges: list[Range], **options: bool) -> Columns:
    columns = Columns()
    with Connection(*node.kv, bucket="default") as connection:
        for chunk in BulkReader(connection, **options).read(ranges):
            cut_columns(chunk, columns)
    return columns


def test_documents(client: Client) -> None:
    first = client.insert("k", {"a": 1}, durability="persisted")
    assert client.get("k").value == {"a": 1}  # type: ignore[union-attr]
    with pytest.raises(ConditionError, match="write 'k'") as failed:
        client.insert("k", 2)
    assert failed.value.code == "key_exists"
    second = client.replace("k", [2], cas=first.cas, durability="majority")
    assert second.seqno == first.seqno + 1
    assert second.uuid == first.uuid
    with pytest.raises(ConditionError) as failed:
        client.upsert("k", 3, cas=first.cas)
    assert failed.value.code == "cas_mismatch"
    assert client.exists("k")
    assert client.touch("k", 100).cas > second.cas
    assert client.upsert("k", b"\x00raw", preserve_expiry=True).seqno == first.seqno + 3
    assert client.get("k").value == b"\x00raw"  # type: ignore[union-attr]
    client.remove("k", durability="persisted")
    assert not client.exists("k")
    assert client.get("k") is None
    with pytest.raises(ConditionError) as failed:
        client.remove("k")
    assert failed.value.code == "not_found"
    found = client.get_versioned("k")
    assert found is not None
    assert (found.is_deleted, found.uuid, found.seqno) == (True, first.uuid, first.seqno + 4)


def test_counters(client: Client) -> None:
    with pytest.raises(ConditionError):
        client.increment("c")
    assert client.increment("c", 5, initial=10) == 10
    assert client.increment("c", 5) == 15
    assert client.increment("c", -20) == 0
    client.upsert("t", {"a": 1})
    with pytest.raises(ConditionError) as failed:
        client.increment("t")
    assert failed.value.code == "not_a_number"


def test_limits(client: Client) -> None:
    value = bytes(20 * 1024 * 1024)
    client.upsert("large", value)
    assert client.get("large").data == value  # type: ignore[union-attr]
    client.upsert(b"\xff\x00" * 125, 1)
    assert client.get(b"\xff\x00" * 125) is not None
    for call in (lambda: client.upsert("x" * 251, 1), lambda: client.upsert("x", value + b"1")):
        with pytest.raises(MillstreamError):
            call()


def test_bulk_writes_and_ranges(node: NodeProcess, client: Client) -> None:
    documents = {f"k{number}": {"n": number} for number in range(20_000)}
    assert client.upsert_many(documents).done == len(documents)
    gone = [(f"k{number}", None) for number in range(100)]
    assert client.apply_many([*gone, ("never", None)], durability="persisted") == (101, [])
    client.wait_persisted()
    assert len(client.get_many(documents)) == len(documents) - 100
    found = read(node, ranges_of(client))
    assert len(found) == len(documents)
    assert found.op.count("delete") == 100
    assert set(found.key) == set(documents)
    assert all(found.expiry[n] > 0 for n in range(len(found)) if found.op[n] == "delete")
    told = read(node, ranges_of(client), with_meta=True)
    revisions = Revisions(client.cluster_map.bucket_uuid)
    for text, meta, rev in zip(told.key, told.meta, told.rev, strict=True):
        lineage, sidecar = decode_meta(meta)
        assert decode(lineage).runs[0][1] == 1
        assert revisions.of(text.encode(), lineage, rev).startswith(f"{rev}-")
        assert sidecar == b""
    assert sorted(zip(told.key, told.rev, strict=True)) == sorted(
        zip(found.key, found.rev, strict=True)
    )
    bare = read(node, ranges_of(client), with_values=False)
    assert sorted(bare.key) == sorted(found.key)
    assert not any(bare.value)


def test_ranges_under_a_lease_read_as_of_it(node: NodeProcess, client: Client) -> None:
    client.upsert_many({f"k{number}": 1 for number in range(1000)})
    held = client.open_lease([found.partition_id for found in client.positions()])
    lease_ids = {partition_id: hold.lease_id for partition_id, hold in held.items()}
    ranges = ranges_of(client, lease_ids)
    client.upsert_many({f"k{number}": 2 for number in range(1000)})
    client.apply_many([(f"k{number}", None) for number in range(500)])
    found = read(node, ranges)
    assert sorted(found.key) == sorted(f"k{number}" for number in range(1000))
    assert set(found.value) == {b"1"}
    halves = [r._replace(end_seqno=r.end_seqno // 2) for r in ranges if r.end_seqno > 1]
    part = read(node, halves)
    assert (
        max(
            seqno - next(r.end_seqno for r in halves if r.partition_id == partition_id)
            for partition_id, seqno in zip(part.partition, part.seqno, strict=True)
        )
        == 0
    )
    assert client.renew_lease(lease_ids[0], list(held)).keys() == held.keys()
    client.release_lease(lease_ids[0], list(held))
    assert client.renew_lease(lease_ids[0], list(held)) == {}
    with pytest.raises(StreamError) as failed:
        read(node, ranges)
    assert failed.value.code == "lease_lost"


def test_positions_that_are_not_of_this_history(node: NodeProcess, client: Client) -> None:
    client.upsert("k", 1)
    partition_id = client.partition_of("k")
    (position,) = client.positions([partition_id])
    assert client.branch_log(partition_id)[0].uuid == position.uuid
    ahead = Range(partition_id, Position(position.uuid, 50, 50, 50), 60)
    with pytest.raises(RollbackRequiredError) as failed:
        read(node, [ahead])
    assert (failed.value.partition_id, failed.value.seqno) == (partition_id, 1)
    held = client.open_lease([partition_id])[partition_id]
    wanted = Range(partition_id, Position(), 1, held.lease_id, end_uuid=position.uuid ^ 1)
    with pytest.raises(StreamError) as lost:
        read(node, [wanted])
    assert lost.value.code == "lease_lost"


async def test_consumer_sees_every_document_once(node: NodeProcess, client: Client) -> None:
    client.upsert_many({f"k{number}": number for number in range(5000)})
    keys = []
    async with Consumer(address_of(node), bucket="default", until_now=True) as consumer:
        async for event in consumer:
            if isinstance(event, Changes):
                keys += [change_of(frame).key for frame in event.frames]
    assert sorted(keys) == sorted(b"k%d" % number for number in range(5000))
    assert all(progress.position.is_closed for progress in consumer.checkpoint.progress.values())


def test_users(make_node: MakeNode) -> None:
    node = make_node("--bucket", "default", "--user", "ann:s3cret pässword").start()
    with millstream.connect(address_of(node), user="ann", password="s3cret pässword") as client:
        client.upsert("k", 1)
    with pytest.raises(AccessError) as failed:
        millstream.connect(address_of(node), user="ann", password="wrong")
    assert failed.value.code == "bad_credentials"
    with pytest.raises(AccessError):
        millstream.connect(address_of(node))
    with pytest.raises(AccessError) as failed:
        millstream.connect(
            address_of(node), bucket="trains", user="ann", password="s3cret pässword"
        )
    assert failed.value.code == "unknown_bucket"
