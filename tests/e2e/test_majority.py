"""What a majority has on disk, as readers see it: two nodes, one of which stands still."""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct

from millstream.model.position import Position
from millstream.upr.core.messages import StreamRequest, encode_stream_request
from millstream.wire.mcbp import Opcode, OpenFlag, Packet, Status
from support.kv.nodes_with_map import activate_first, give_map
from support.kv.raw_client import RawClient
from support.node.node_process import NodeProcess
from support.node.waiting import WAIT_S, until

POSITION = Struct(">HB5x8Q")
ROWS = [["a", "b"]]
CHANGES = (Opcode.DCP_MUTATION, Opcode.DCP_DELETION)
Nodes = dict[str, NodeProcess]


def started(make_node: Callable[..., NodeProcess]) -> Nodes:
    nodes = {name: make_node("--no-memcached", name=name).start() for name in "ab"}
    give_map(nodes, "shared", ROWS)
    activate_first(nodes, "shared", ROWS)
    return nodes


def ends(client: RawClient) -> tuple[int, int, int]:
    """High, persisted and durable seqno."""
    found = POSITION.unpack(client.ask(Opcode.POSITIONS).value)
    return found[4], found[7], found[8]


def put(client: RawClient, key: bytes) -> None:
    assert client.ask(Opcode.SET, key=key, extras=bytes(8), value=b"v").status == 0


def durable_reader(node: NodeProcess) -> RawClient:
    reader = RawClient(node.kv, "shared", extended=True)
    flags = (OpenFlag.PRODUCER | OpenFlag.INCLUDE_DELETE_TIMES).to_bytes(4, "big")
    assert reader.ask(Opcode.DCP_OPEN, key=b"reader", extras=bytes(4) + flags).status == 0
    assert reader.ask(Opcode.DCP_CONTROL, key=b"durable_only", value=b"true").status == 0
    reader.send(encode_stream_request(StreamRequest(0, Position()), 0))
    assert reader.receive().status == Status.SUCCESS
    return reader


def next_change(reader: RawClient) -> Packet:
    while (packet := reader.receive()).opcode not in CHANGES:
        pass
    return packet


def test_a_reader_of_durable_changes_waits_for_the_disk_of_the_other_copy(
    make_node: Callable[..., NodeProcess],
) -> None:
    nodes = started(make_node)
    with RawClient(nodes["a"].kv, "shared", extended=True) as client:
        put(client, b"first")
        until(lambda: ends(client) == (1, 1, 1))
        with durable_reader(nodes["a"]) as reader:
            assert next_change(reader).key == b"first"
            with nodes["b"].standing_still():
                put(client, b"second")
                until(lambda: ends(client)[1] == 2)
                assert ends(client) == (2, 2, 1), "one of two copies is no majority"
                reader.set_timeout(0.3)
                try:
                    unexpected = next_change(reader)
                except TimeoutError:
                    pass
                else:
                    raise AssertionError(f"{unexpected.key!r} is on one disk only")
            reader.set_timeout(WAIT_S)
            assert next_change(reader).key == b"second"
            assert ends(client) == (2, 2, 2)
