"""Barrier cookies over a real socket: what was acknowledged before the cookie comes before it."""

from struct import Struct

from millstream.model.position import Position
from millstream.upr.core.messages import (
    StreamRequest,
    decode_barrier_reached,
    encode_barrier,
    encode_stream_request,
)
from millstream.wire.mcbp import Opcode, Status, request
from support.kv.raw_client import RawClient
from support.node.node_process import NodeProcess

OPEN = Struct(">II")
PARTITIONS = range(8)
CHANGES = {Opcode.DCP_MUTATION, Opcode.DCP_DELETION, Opcode.DCP_EXPIRATION}


def streaming(node: NodeProcess) -> RawClient:
    """A connection that follows some partitions and has asked for barriers."""
    client = RawClient(node.kv, "default", extended=True)
    assert client.ask(Opcode.DCP_OPEN, key=b"barriers", extras=OPEN.pack(0, 0x21)).status == 0
    reply = client.ask(Opcode.DCP_CONTROL, key=b"enable_barriers", value=b"true")
    assert reply.status == 0
    return client


def write(client: RawClient, value: bytes) -> None:
    """Write 80 documents and wait for the replies."""
    for partition_id in PARTITIONS:
        for number in range(10):
            key = b"%d" % number
            client.send(
                request(Opcode.SET, vbucket=partition_id, key=key, value=value, extras=bytes(8))
            )
    for _ in range(10 * len(PARTITIONS)):
        assert client.receive().status == 0


def test_a_cookie_says_that_everything_before_it_was_streamed(shared_node: NodeProcess) -> None:
    seen: dict[tuple[int, bytes], bytes] = {}
    with RawClient(shared_node.kv, "default") as writer, streaming(shared_node) as client:
        client.send(encode_barrier(b"idle"))
        assert client.receive().status == 0
        assert decode_barrier_reached(client.receive()) == (b"idle", {})
        for partition_id in PARTITIONS:
            client.send(
                encode_stream_request(StreamRequest(partition_id, Position()), partition_id)
            )
        for value in (b"1", b"2", b"3"):
            write(writer, value)
            client.send(encode_barrier(value, opaque=77))
            while True:
                packet = client.receive()
                if packet.opcode in CHANGES:
                    seen[packet.vbucket, packet.key] = packet.value
                if packet.opcode == Opcode.BARRIER_REACHED:
                    break
                assert packet.opcode != Opcode.BARRIER or packet.status == Status.SUCCESS
            cookie, reached = decode_barrier_reached(packet)
            assert (cookie, packet.opaque) == (value, 77)
            assert {p: found.seqno for p, found in reached.items()} == dict.fromkeys(
                PARTITIONS, 10 * int(value)
            )
            assert seen == {(p, b"%d" % n): value for p in PARTITIONS for n in range(10)}
