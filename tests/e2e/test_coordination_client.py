"""The Python client against three nodes of a real group, whose primaries go away."""

import asyncio
from pathlib import Path

from coordinators import Nodes, until
from millstream.coordination import Client


async def count_up(client: Client, key: str, times: int) -> None:
    """Add 1 so often, each time to what is there."""
    for _ in range(times):
        while True:
            value = await client.get(key)
            if await client.cas(key, value, b"%d" % (int(value or b"0") + 1)):
                break


async def test_clients_count_while_primaries_go_away(tmp_path: Path) -> None:
    async with Nodes(tmp_path) as nodes:
        address = f"127.0.0.1:{nodes.coord_ports[2]}"
        async with (
            Client([address], deadline_s=40) as one,
            Client([address], deadline_s=40) as other,
        ):
            counting = [
                asyncio.ensure_future(count_up(client, "k", 60)) for client in (one, other, one)
            ]
            for _ in range(2):
                await until(lambda: nodes.primary() is not None)
                gone = nodes.primary()
                assert gone is not None
                await nodes.stop(gone)
                await one.set("still", b"there")
                await nodes.start(gone)
            await asyncio.gather(*counting)
            assert await other.get("k") == b"180"
            assert one.client_id != other.client_id
    assert nodes.fatal == []
