"""A client for each group that has a path, on a real node with two groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.coordination.core.client_errors import MissingError
from namespace_node import namespace_client, one_node


async def test_paths_of_two_groups(tmp_path: Path) -> None:
    async with one_node(tmp_path) as address, namespace_client(address) as client:
        (here,) = await client.raw.execute(b"ADMIN", b"NODES", is_change=False)
        await client.raw.execute(
            b"ADMIN", b"GROUP", b"CREATE", b"2", here[b"node"], is_change=False
        )
        await client.execute("CREATENAMESPACE", "/far", "GROUP", "2", is_change=True)
        await client.create("/far/a", b"1")
        await client.create("/app/a", b"2")
        assert (await client.get("/far/a")).data == b"1"
        assert (await client.get("/app/a")).data == b"2"
        assert await client.at("/far/a") is not await client.at("/app/a")
        assert await client.at("/app/a") is client.raw
        with pytest.raises(MissingError):
            await client.get("/nowhere/a")
