"""A client for each group that has a path, on a real node with two groups."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from millstream.coordination import AsyncClient
from millstream.coordination.core.client.errors import MissingError
from millstream.errors import ConditionError
from support.coordination.coordinators import WAIT_S
from support.coordination.namespace_node import namespace_client, one_node


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


async def test_a_stale_read_names_what_was_seen_of_its_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with one_node(tmp_path) as address, namespace_client(address) as client:
        await client.create("/app/a", b"1")
        said: list[tuple[bytes, ...]] = []
        execute = client.raw.execute

        async def noted(*words: bytes, **options: Any) -> Any:
            said.append(words)
            return await execute(*words, **options)

        monkeypatch.setattr(client.raw, "execute", noted)
        await client.get("/app/a", stale=True)
        assert b"SEEN" not in said[-1]
        async with client.subscribe("/app/a") as changes, asyncio.timeout(WAIT_S):
            await client.put("/app/a", b"2")
            change = await anext(changes)
        assert (await client.get("/app/a", stale=True)).data == b"2"
        assert said[-1][:3] == (b"SEEN", b"0:0:%d" % change.lsn, b"GET")
        assert said[-1][-1] == b"STALEREAD"


async def test_the_only_node_says_that_it_has_lost_what_was_seen(tmp_path: Path) -> None:
    async with one_node(tmp_path) as address, namespace_client(address) as client:
        await client.create("/app/a", b"1")
        async with AsyncClient([address], deadline_s=WAIT_S) as other:
            assert (await other.get("/app/a", stale=True)).data == b"1"
            other.note_seen(other.raw, 10_000)
            other.note_seen(other.raw, 5)
            with pytest.raises(
                ConditionError, match=r"^GET /app/a was not done.*set back"
            ) as said:
                await other.get("/app/a", stale=True)
            assert said.value.code == "history_lost"
