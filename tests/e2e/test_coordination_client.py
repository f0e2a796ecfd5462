"""The Python client: three nodes whose primaries go away, and a node as it is served."""

import asyncio
import ssl
from pathlib import Path
from typing import Any

import pytest

from millstream.coordination import AsyncClient, Client
from millstream.errors import AccessError, UnavailableError
from support.coordination.coordinators import WAIT_S, Nodes
from support.node.node_process import FREE, NodeProcess

TLS = Path(__file__).parent / "tls"


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
                gone = await nodes.leader()
                await nodes.stop(gone)
                await one.set("still", b"there")
                await nodes.start(gone)
            await asyncio.gather(*counting)
            assert await other.get("k") == b"180"
            assert one.client_id != other.client_id
    assert nodes.fatal == []


async def test_namespaces_while_primaries_go_away(tmp_path: Path) -> None:
    """Each increment counts once, each change is heard once, and one at a time has the lock."""
    async with Nodes(tmp_path) as nodes:
        places = [f"127.0.0.1:{port}" for port in nodes.coord_ports.values()]
        async with (
            AsyncClient(places, deadline_s=WAIT_S) as one,
            AsyncClient(places, deadline_s=WAIT_S) as other,
        ):
            await one.create_namespace("/app")
            await one.create("/app/count", type="COUNTER")
            await one.create("/app/log", type="LIST")
            has_begun = asyncio.Event()
            inside: list[AsyncClient] = []

            async def work(client: AsyncClient, times: int) -> None:
                for _ in range(times):
                    async with client.lock("/app/log") as lock:
                        inside.append(client)
                        assert inside == [client]
                        found = await client.counter("/app/count").add()
                        assert lock.token is not None
                        await client.items("/app/log").append(b"%d" % found.value)
                        inside.remove(client)

            async def hear(number: int) -> list[int]:
                heard = []
                async with other.subscribe("/app/log") as changes:
                    while len(heard) < number:
                        change = await anext(changes)
                        has_begun.set()
                        heard += [change.lsn] * (change.op == "list")
                return heard

            hearing = asyncio.ensure_future(hear(60))
            while not has_begun.is_set():
                await one.put_attributes("/app/log", n=b"something to hear")
            working = [asyncio.ensure_future(work(client, 30)) for client in (one, other)]
            for _ in range(2):
                gone = await nodes.leader()
                await nodes.stop(gone)
                await one.counter("/app/count").get()
                await nodes.start(gone)
            await asyncio.gather(*working)
            numbers = [int(text) for text in await one.items("/app/log").range()]
            assert numbers == list(range(1, 61))
            async with asyncio.timeout(WAIT_S):
                heard = await hearing
            assert heard == sorted(set(heard))
    assert nodes.fatal == []


async def test_users_and_tls(tmp_path: Path) -> None:
    options = ("--tls-cert", str(TLS / "node.pem"), "--user", "ada:pw")
    with NodeProcess(tmp_path / "node", "--no-memcached", "--coord", FREE, *options) as node:
        host, port = node.address("coord")
        tls = ssl.create_default_context(cafile=str(TLS / "authority.pem"))
        login: dict[str, Any] = {"user": "ada", "password": "pw", "tls": tls}
        async with Client([f"{host}:{port}"], **login) as client:
            await client.set("k", b"v")
            assert await client.get("k") == b"v"
        async with Client([f"{host}:{port}"], tls=tls) as nobody:
            with pytest.raises(AccessError):
                await nobody.get("k")
        strict = ssl.create_default_context()
        async with Client([f"{host}:{port}"], tls=strict, deadline_s=1) as stranger:
            with pytest.raises(UnavailableError):
                await stranger.get("k")
        assert await asyncio.to_thread(node.stop) == 0
