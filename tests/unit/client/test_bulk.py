import json
from collections.abc import Iterator
from contextlib import closing
from struct import pack, unpack
from typing import Any

import pytest

from millstream.client import bulk
from millstream.client.bulk import BulkReader, Range
from millstream.client.columns import Columns, cut_columns, decode_meta
from millstream.client.connection import Connection
from millstream.errors import (
    MillstreamError,
    RemoteProtocolError,
    RollbackRequiredError,
    RoutingError,
    StreamError,
    UnavailableError,
)
from millstream.model.position import Position
from millstream.wire.cluster_map import NodeAddress
from millstream.wire.frames import described, mutation, snapshot_marker, stream_end
from millstream.wire.mcbp import Opcode, Packet, Status, StreamEndReason, request, response

LOG = pack(">QQ", 0xAB, 0)


def changes(partition_id: int, seqnos: range, value: bytes = b"v") -> bytes:
    return snapshot_marker(partition_id, partition_id, seqnos[0], seqnos[-1], 1) + b"".join(
        mutation(partition_id, b"k%d" % n, value, n, 1, n, 0, 0, 0) for n in seqnos
    )


def ok(packet: Packet) -> bytes:
    return response(packet.opcode, Status.SUCCESS, packet.opaque, value=LOG)


@pytest.fixture
def streams(node: Any) -> Any:
    """A node that streams seqnos (start, end] of any partition."""

    def stream(packet: Packet) -> bytes:
        start, end = unpack(">8xQQ24x", packet.extras)
        p = packet.vbucket
        body = changes(p, range(start + 1, end + 1)) if end > start else b""
        return ok(packet) + body + stream_end(p, p, StreamEndReason.OK)

    for opcode in (Opcode.DCP_OPEN, Opcode.DCP_CONTROL):
        node.handlers[opcode] = lambda packet: response(packet.opcode, 0, packet.opaque)
    for opcode in (Opcode.DCP_BUFFER_ACK, Opcode.DCP_NOOP):
        node.handlers[opcode] = lambda packet: b""
    node.handlers[Opcode.DCP_STREAM_REQ] = stream
    return node


@pytest.fixture
def connection(streams: Any) -> Iterator[Connection]:
    with Connection(streams.host, streams.port, bucket="flights") as made:
        yield made


def columns_of(chunks: Iterator[bytes]) -> Columns:
    columns = Columns()
    for chunk in chunks:
        cut_columns(chunk, columns)
    return columns


def closed(seqno: int) -> Position:
    return Position(0xAB, seqno, seqno, seqno)


def test_ranges_of_many_partitions(streams: Any, connection: Connection) -> None:
    reader = BulkReader(connection, with_values=False)
    found = columns_of(reader.read(Range(p, closed(5), 5 + p) for p in range(20)))
    assert sorted(zip(found.partition, found.seqno, strict=True)) == [
        (p, n) for p in range(20) for n in range(6, 6 + p)
    ]
    asked = [packet.vbucket for packet in streams.requests_of(Opcode.DCP_STREAM_REQ)]
    assert asked == list(range(20))
    assert unpack(">II", streams.requests_of(Opcode.DCP_OPEN)[0].extras) == (0, 0x61)
    assert len(columns_of(reader.read([Range(3, closed(0), 4)]))) == 4


@pytest.mark.parametrize("status", [Status.SUCCESS, Status.EINVAL])
def test_a_selector_is_for_nodes_that_know_it(
    streams: Any, connection: Connection, status: int
) -> None:
    streams.handlers[Opcode.DCP_CONTROL] = lambda packet: response(
        packet.opcode, status if packet.key == b"selector" else 0, packet.opaque
    )
    reader = BulkReader(connection, selector='{"n": 1}')
    assert columns_of(reader.read([Range(3, closed(0), 4)])).seqno == [1, 2, 3, 4]
    asked = {packet.key: packet.value for packet in streams.requests_of(Opcode.DCP_CONTROL)}
    assert asked[b"selector"] == b'{"n": 1}'


def test_request_says_lease_purge_and_history(streams: Any, connection: Connection) -> None:
    position = Position(0xAB, 3, 0, 9, purge_seqno=2)
    wanted = Range(1, position, 7, lease_id=55, end_uuid=0xCD)
    columns_of(BulkReader(connection).read([wanted]))
    packet = streams.requests_of(Opcode.DCP_STREAM_REQ)[0]
    assert unpack(">IIQQQQQ", packet.extras) == (0, 0, 3, 7, 0xAB, 0, 9)
    assert json.loads(packet.value) == {"purge_seqno": "2", "lease": 55, "end_uuid": "cd"}
    assert packet.opaque == 1


def test_frames_larger_than_the_buffer_and_cut_anywhere(
    streams: Any, connection: Connection
) -> None:
    data = changes(1, range(1, 40), bytes(1000))
    streams.handlers[Opcode.DCP_STREAM_REQ] = lambda packet: (
        ok(packet) + data + stream_end(1, 1, 0)
    )
    found = columns_of(BulkReader(connection, fetch_bytes=100).read([Range(1, closed(0), 39)]))
    assert found.seqno == list(range(1, 40))
    assert found.value == [bytes(1000)] * 39


def test_what_was_handled_is_acknowledged(streams: Any, connection: Connection) -> None:
    reader = BulkReader(connection, window_bytes=2000, fetch_bytes=500)
    columns_of(reader.read([Range(1, closed(0), 200)]))
    connection.request(Opcode.NOOP)  # answered after all acknowledgements
    acked = [
        unpack(">I", packet.extras)[0] for packet in streams.requests_of(Opcode.DCP_BUFFER_ACK)
    ]
    size = len(changes(1, range(1, 201))) + len(stream_end(1, 1, 0))
    assert acked
    assert min(acked) >= 1000
    assert size - 1000 < sum(acked) <= size


def test_noops_are_answered(streams: Any, connection: Connection) -> None:
    noop = request(Opcode.DCP_NOOP, opaque=77)
    plain = streams.handlers[Opcode.DCP_STREAM_REQ]
    streams.handlers[Opcode.DCP_STREAM_REQ] = lambda packet: noop + plain(packet) + noop[:10]
    reader = BulkReader(connection)
    assert len(columns_of(reader.read([Range(1, closed(0), 3)]))) == 3
    streams.handlers[Opcode.DCP_STREAM_REQ] = lambda packet: noop[10:] + plain(packet)
    assert len(columns_of(reader.read([Range(1, closed(0), 3)]))) == 3
    assert {packet.opaque for packet in streams.requests_of(Opcode.DCP_NOOP)} == {77}


def test_rollback_names_partition_and_seqno(streams: Any, connection: Connection) -> None:
    plain = streams.handlers[Opcode.DCP_STREAM_REQ]
    streams.handlers[Opcode.DCP_STREAM_REQ] = lambda packet: response(
        packet.opcode, Status.ROLLBACK, packet.opaque, value=(4).to_bytes(8, "big")
    )
    reader = BulkReader(connection)
    with pytest.raises(RollbackRequiredError, match="undo partition 6 to seqno 4") as failed:
        columns_of(reader.read([Range(6, closed(9), 12)]))
    assert (failed.value.partition_id, failed.value.seqno) == (6, 4)
    streams.handlers[Opcode.DCP_STREAM_REQ] = plain
    assert len(columns_of(reader.read([Range(6, closed(4), 12)]))) == 8


@pytest.mark.parametrize(
    ("status", "kind", "code"),
    [
        (Status.LEASE_LOST, StreamError, "lease_lost"),
        (Status.NOT_MY_VBUCKET, RoutingError, "not_my_partition"),
    ],
)
def test_refusals(
    streams: Any, connection: Connection, status: int, kind: type[Exception], code: str
) -> None:
    streams.handlers[Opcode.DCP_STREAM_REQ] = lambda packet: response(
        packet.opcode, status, packet.opaque
    )
    with pytest.raises(kind, match="stream of partition 1 of bucket 'flights'") as failed:
        columns_of(BulkReader(connection).read([Range(1, closed(9), 12)]))
    assert failed.value.code == code  # type: ignore[attr-defined]


def test_early_end_says_why(streams: Any, connection: Connection) -> None:
    def end(packet: Packet) -> bytes:
        return ok(packet) + changes(1, range(1, 4)) + stream_end(1, 1, StreamEndReason.ROLLED_BACK)

    streams.handlers[Opcode.DCP_STREAM_REQ] = end
    found = Columns()
    chunks = BulkReader(connection).read([Range(1, closed(0), 12)])
    cut_columns(next(chunks), found)
    with pytest.raises(StreamError, match="rolled back") as failed:
        next(chunks)
    assert failed.value.code == "rolled_back"
    assert found.seqno == [1, 2, 3]
    assert not connection.is_closed


def test_reader_that_stops_early_closes(streams: Any, connection: Connection) -> None:
    chunks = BulkReader(connection, fetch_bytes=100).read([Range(1, closed(0), 200)])
    next(chunks)
    chunks.close()  # type: ignore[attr-defined]
    assert connection.is_closed


def test_unexpected_messages_and_lost_connections(streams: Any) -> None:
    for reply, error in (
        (request(Opcode.GET), RemoteProtocolError),
        (stream_end(2, 2, 0), RemoteProtocolError),
        (mutation(1, b"k", b"v" * 200, 1, 1, 1, 0, 0, 0)[:50], UnavailableError),  # no more comes
    ):
        streams.handlers[Opcode.DCP_STREAM_REQ] = lambda packet, reply=reply: ok(packet) + reply
        connection = Connection(streams.host, streams.port, bucket="flights")
        reader = BulkReader(connection)
        connection.set_timeout(0.2 if error is UnavailableError else 60)
        with pytest.raises(error):
            columns_of(reader.read([Range(1, closed(0), 12)]))
        assert connection.is_closed


def test_one_stream_of_a_partition_at_a_time(streams: Any, connection: Connection) -> None:
    ranges = [Range(1, closed(n), n + 2) for n in (0, 2, 4)] + [Range(2, closed(0), 1)]
    found = columns_of(BulkReader(connection).read(ranges))
    assert [n for p, n in zip(found.partition, found.seqno, strict=True) if p == 1] == [
        1, 2, 3, 4, 5, 6,
    ]  # fmt: skip
    assert bulk.STREAMS_MAX >= 2


@pytest.mark.parametrize("fetch_bytes", [30, 100, 4096])
def test_a_change_and_its_description_are_in_one_chunk(
    streams: Any, connection: Connection, fetch_bytes: int
) -> None:
    pairs = [
        described(mutation(1, b"k", bytes(50 * n), n, 1, n, 0, 0, 0), b"\x03%c" % n, bytes(20 * n))
        for n in range(1, 40)
    ]
    data = snapshot_marker(1, 1, 1, 39, 1) + b"".join(pairs)
    streams.handlers[Opcode.DCP_STREAM_REQ] = lambda packet: (
        ok(packet) + data + stream_end(1, 1, 0)
    )
    reader = BulkReader(connection, with_meta=True, fetch_bytes=fetch_bytes)
    found = Columns()
    for chunk in reader.read([Range(1, closed(0), 39)]):
        cut_columns(chunk, found)
        assert len(found.meta) == len(found)
    assert found.seqno == list(range(1, 40))
    assert [decode_meta(meta) for meta in found.meta] == [
        (b"\x03%c" % n, bytes(20 * n)) for n in range(1, 40)
    ]
    asked = {packet.key: packet.value for packet in streams.requests_of(Opcode.DCP_CONTROL)}
    assert asked[b"document_meta"] == b"true"


def test_a_description_without_its_change_is_an_error(
    streams: Any, connection: Connection
) -> None:
    pair = described(mutation(1, b"k", b"", 5, 1, 5, 0, 0, 0), b"\x03\x05")
    description = pair[: 24 + 12]
    streams.handlers[Opcode.DCP_STREAM_REQ] = lambda packet: (
        ok(packet) + description + stream_end(1, 1, 0)
    )
    with pytest.raises(RemoteProtocolError, match="0x6f"):
        columns_of(BulkReader(connection, with_meta=True).read([Range(1, closed(0), 5)]))


class Nodes:
    """A router to nodes that are away for a while; each has one partition."""

    def __init__(self, connections: list[Connection], *, away: int = 0) -> None:
        self.connections, self.away = connections, away
        self.taken: list[NodeAddress] = []
        self.refreshed = 0

    def node_of(self, partition_id: int) -> NodeAddress:
        return NodeAddress("node", partition_id % 2)

    def groups(self, partition_ids: list[int]) -> dict[NodeAddress, list[int]]:
        found: dict[NodeAddress, list[int]] = {}
        for number in partition_ids:
            found.setdefault(self.node_of(number), []).append(number)
        return found

    def take(self, node: NodeAddress) -> Connection:
        self.away -= 1
        if self.away >= 0:
            raise UnavailableError("away")
        self.taken.append(node)
        return self.connections.pop()

    def refresh_map(self) -> None:
        self.refreshed += 1
        raise UnavailableError("nobody is there")


class Waits:
    """Waits without a pause."""

    def pause(self, failure: MillstreamError) -> None:
        """Go on at once."""

    def end(self) -> None:
        """Nothing to note."""


@pytest.fixture
def make_nodes(streams: Any) -> Iterator[Any]:
    made: list[Connection] = []

    def make(count: int, **options: int) -> Nodes:
        made.extend(Connection(streams.host, streams.port, bucket="flights") for _ in range(count))
        return Nodes(made[-count:], **options)

    yield make
    for each in made:
        each.close()


def test_ranges_are_read_at_one_node_after_the_other(make_nodes: Any) -> None:
    nodes = make_nodes(3)
    ranges = bulk.BucketRanges(nodes)
    wanted = [Range(p, Position(), 10 + p) for p in range(4)]
    found = columns_of(ranges.read(wanted))
    assert sorted(found.partition) == [p for p in range(4) for _ in range(10 + p)]
    assert nodes.taken == [("node", 0), ("node", 1)]
    list(ranges.read(wanted[1:2]))
    assert len(nodes.taken) == 2, "the connection to the last node is kept"
    ranges.close()
    list(ranges.read(wanted[1:2]))
    assert len(nodes.taken) == 3
    ranges.close()


def test_a_node_that_restarts_is_read_from_afterwards(make_nodes: Any) -> None:
    nodes = make_nodes(1, away=2)
    with closing(bulk.BucketRanges(nodes, waiting=Waits())) as ranges:
        assert len(columns_of(ranges.read([Range(0, Position(), 5)]))) == 5
    assert nodes.refreshed == 2
    nodes.away = 1
    with pytest.raises(UnavailableError, match="away"):
        list(bulk.BucketRanges(nodes).read([Range(0, Position(), 5)]))


def test_what_was_given_is_not_given_again(
    make_nodes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(*_: object) -> Iterator[bytes]:
        yield b"chunk"
        raise UnavailableError("cut")

    monkeypatch.setattr(BulkReader, "read", cut)
    nodes = make_nodes(1)
    (connection,) = nodes.connections
    found = bulk.BucketRanges(nodes, waiting=Waits()).read([Range(0, Position(), 5)])
    assert next(found) == b"chunk"
    with pytest.raises(UnavailableError, match="cut"):
        next(found)
    assert connection.is_closed


def test_a_caller_that_stops_reading_leaves_no_connection(make_nodes: Any) -> None:
    nodes = make_nodes(1)
    (connection,) = nodes.connections
    found = bulk.BucketRanges(nodes).read([Range(0, Position(), 5)])
    next(found)
    found.close()  # type: ignore[attr-defined]
    assert connection.is_closed
