"""Documents expire unasked, on the stream too, and after a kill in the middle of their lives."""

from collections.abc import Callable

import pytest

import millstream
from millstream.upr import Consumer
from millstream.upr.aio.client import Changes
from millstream.wire.frames import change_of
from millstream.wire.mcbp import Opcode
from support.node.node_process import NodeProcess

MakeNode = Callable[..., NodeProcess]


def address_of(node: NodeProcess) -> str:
    host, port = node.kv
    return f"{host}:{port}"


async def expirations(node: NodeProcess, count: int) -> set[bytes]:
    """Return the keys of the first expirations on the stream."""
    found: set[bytes] = set()
    async with Consumer(address_of(node), bucket="default") as consumer:
        async for event in consumer:
            if isinstance(event, Changes):
                changes = [change_of(frame) for frame in event.frames]
                found |= {c.key for c in changes if c.opcode == Opcode.DCP_EXPIRATION}
            if len(found) >= count:
                break
    return found


@pytest.mark.parametrize("is_killed", [False, True])
async def test_documents_expire_unasked(make_node: MakeNode, is_killed: bool) -> None:
    node = make_node("--bucket", "default")
    node.start()
    with millstream.connect(address_of(node), timeout_s=30) as client:
        client.upsert("stays", 1)
        client.upsert("later", 1, expiry=600)
        for number in range(100):
            client.upsert(f"k{number}", number, expiry=2)
        client.upsert("last", 1, expiry=2, durability="persisted")
        client.upsert("stays", 2, durability="persisted")
    if is_killed:
        node.kill()
        node = make_node("--bucket", "default")
        node.start()
    gone = await expirations(node, 101)
    assert gone == {b"last", *(b"k%d" % number for number in range(100))}
    with millstream.connect(address_of(node), timeout_s=30) as client:
        assert client.get("stays").value == 2
        assert client.get("later").value == 1
