"""Reading the past from outside: durable-only streams, and leases of what was flushed once."""

from collections.abc import Callable
from struct import Struct, unpack

from millstream.model.position import Position
from millstream.upr.core.messages import StreamRequest, encode_stream_request
from millstream.wire.mcbp import Opcode, Packet, Status
from support.kv.raw_client import RawClient
from support.node.node_process import NodeProcess

MakeNode = Callable[..., NodeProcess]
OPEN = Struct(">II")
LEASE = Struct(">BQH")
ONE = Struct(">HQ")
DURABLE = bytes((0x11, 3))
HIGH = 2**64 - 1
ALL_BUT_CHANGES = {Opcode.DCP_SNAPSHOT_MARKER, Opcode.DCP_STREAM_END, Opcode.DCP_NOOP}


def client_of(node: NodeProcess) -> RawClient:
    return RawClient(node.kv, "default", extended=True)


def put(client: RawClient, key: bytes, value: bytes) -> None:
    """Set a document of partition 0, and wait until the disk has it."""
    reply = client.ask(Opcode.SET, key=key, value=value, extras=bytes(8), framing=DURABLE)
    assert reply.status == 0


def lease(client: RawClient, at: int) -> Packet:
    return client.ask(Opcode.LEASE, extras=LEASE.pack(1, 0, 60), value=ONE.pack(0, at))


def opened(node: NodeProcess) -> RawClient:
    streamer = client_of(node)
    reply = streamer.ask(Opcode.DCP_OPEN, key=b"past", extras=OPEN.pack(0, 0x21))
    assert reply.status == 0
    return streamer


def ask_stream(streamer: RawClient, asked: StreamRequest) -> Packet:
    streamer.send(encode_stream_request(asked, 0))
    return streamer.receive()


def changes(streamer: RawClient, upto: int) -> list[tuple[int, bytes, bytes]]:
    """Return (seqno, key, value) of what comes, up to a seqno."""
    found: list[tuple[int, bytes, bytes]] = []
    while not found or found[-1][0] < upto:
        packet = streamer.receive()
        if packet.opcode not in ALL_BUT_CHANGES:
            found.append((unpack(">Q", packet.extras[:8])[0], packet.key, packet.value))
    return found


def test_a_flushed_state_is_leased_after_more_changes_and_after_a_kill(node: NodeProcess) -> None:
    with client_of(node) as client:
        put(client, b"a", b"1")
        put(client, b"b", b"1")
        put(client, b"a", b"2")
        for value in (b"3", b"4"):
            put(client, b"a", value)
            put(client, b"b", value)
        assert lease(client, 8).status == Status.LEASE_LOST
    node.kill()
    node.start()
    with client_of(node) as client, opened(node) as streamer:
        reply = lease(client, 3)
        assert reply.status == 0
        lease_id = unpack(">QH", reply.extras)[0]
        put(client, b"b", b"5")
        asked = StreamRequest(0, Position(), lease=lease_id)
        assert ask_stream(streamer, asked).status == 0
        assert changes(streamer, 3) == [(2, b"b", b"1"), (3, b"a", b"2")]


def test_a_durable_only_stream_is_told_of_what_the_disk_has(node: NodeProcess) -> None:
    with client_of(node) as client, opened(node) as streamer:
        reply = streamer.ask(Opcode.DCP_CONTROL, key=b"durable_only", value=b"true")
        assert reply.status == 0
        assert ask_stream(streamer, StreamRequest(0, Position())).status == 0
        put(client, b"a", b"1")
        assert changes(streamer, 1) == [(1, b"a", b"1")]
        for number in range(50):
            reply = client.ask(Opcode.SET, key=b"a", value=b"%d" % number, extras=bytes(8))
            assert reply.status == 0
        put(client, b"b", b"last")
        seen = changes(streamer, 52)
        assert [seqno for seqno, _, _ in seen] == sorted({seqno for seqno, _, _ in seen})
        assert seen[-2:] == [(51, b"a", b"49"), (52, b"b", b"last")]
