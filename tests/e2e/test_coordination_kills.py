"""The Python client while the primary's process is killed: what it says was done was, and no more.

Three nodes are processes of their own. Clients count, hold a lock, follow changes, and, with a
deadline that a pause of another member outlasts, make elements.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from millstream.coordination import AsyncClient
from millstream.coordination.aio.client.subscription import Subscription
from millstream.errors import MillstreamError, OutcomeUnknownError
from support.coordination.coordinators import WAIT_S, until
from support.node.node_process import FREE, NodeProcess, free_port

SHORT_S = 0.2
"""Shorter than the time for which no quorum is there."""
OPEN = ("--no-kv", "--no-memcached", "--no-http")
TIMES = 40


def place(node: NodeProcess) -> str:
    host, port = node.address("coord")
    return f"{host}:{port}"


async def until_said(client: AsyncClient, is_so: Callable[[Any], bool], *words: str) -> Any:
    """Ask again until the reply is so; return it."""
    while not is_so(said := await client.execute(*words, is_change=False)):
        pass
    return said


async def three(make_node: Callable[..., NodeProcess]) -> list[NodeProcess]:
    """Start three nodes with one group of all."""
    nodes, peers = [], [f"127.0.0.1:{free_port()}" for _ in range(3)]
    for number, peer in enumerate(peers):
        join = ("--join", peers[0]) if number else ()
        node = make_node("--coord", FREE, "--peer", peer, *join, *OPEN, name=f"n{number}")
        nodes.append(await asyncio.to_thread(node.start))
    async with (
        AsyncClient([place(nodes[0])], deadline_s=WAIT_S) as client,
        asyncio.timeout(WAIT_S),
    ):
        found = await until_said(client, lambda said: len(said) == 3, "ADMIN", "NODES")
        others = [one[b"node"] for one in found if not one[b"is_here"]]
        await client.execute("ADMIN", "GROUP", "ADD", "1", *others, is_change=False)
        await until_said(
            client, lambda said: said[b"fault_tolerance"] == 1, "ADMIN", "STATUS", "1"
        )
    return nodes


class Work:
    """What clients do while a node is killed, and what they were told."""

    def __init__(self) -> None:
        self.values: list[int] = []
        self.heard: list[int] = []
        self.fate: dict[str, str] = {}
        self.is_over = asyncio.Event()

    async def count(self, client: AsyncClient) -> None:
        for _ in range(TIMES):
            self.values.append((await client.counter("/app/count").add()).value)

    async def follow(self, changes: Subscription) -> None:
        async with changes:
            while len(self.heard) < 2 * TIMES:
                change = await anext(changes)
                if change.op == "counter":
                    assert change.data is not None
                    self.heard.append(int(change.data))

    async def hurry(self, client: AsyncClient) -> None:
        """Make elements, and give up soon; go on until some were made after some were not."""
        while not self.is_over.is_set():
            path = f"/app/short/{len(self.fate)}"
            try:
                await client.create(path)
            except OutcomeUnknownError:
                self.fate[path] = "unknown"
            except MillstreamError:
                self.fate[path] = "failed"
            else:
                self.fate[path] = "done"

    def errors(self) -> int:
        return sum(fate != "done" for fate in self.fate.values())


async def kill_primary(
    nodes: list[NodeProcess], client: AsyncClient, has_had_enough: Callable[[], Any]
) -> None:
    """Let another one stand still meanwhile: soon after a kill alone, the next primary serves."""
    (group,) = (await client.execute("VDS", "1", is_change=False)).values()
    primary = group[b"primary"].decode()
    (gone,) = [node for node in nodes if place(node) == primary]
    other = next(node for node in nodes if node is not gone)
    with other.standing_still():
        await asyncio.to_thread(gone.kill)
        await until(has_had_enough)


@pytest.mark.slow
async def test_what_clients_are_told_is_so_when_the_primary_is_killed(
    make_node: Callable[..., NodeProcess],
) -> None:
    nodes = await three(make_node)
    places = [place(node) for node in nodes]
    work = Work()
    async with AsyncExitStack() as stack:
        holder, rival, hearer, hasty = [
            await stack.enter_async_context(AsyncClient(places, deadline_s=deadline_s))
            for deadline_s in (WAIT_S, WAIT_S, WAIT_S, SHORT_S)
        ]
        await holder.create_namespace("/app")
        await holder.create("/app/count", type="COUNTER")
        await holder.create("/app/job")
        await holder.create("/app/short")
        changes = hearer.subscribe("/app/count", with_data=True)
        following = asyncio.ensure_future(work.follow(changes))
        await until(lambda: changes.lsn is not None)
        held, wanted = holder.lock("/app/job"), rival.lock("/app/job")
        await held.acquire()
        token = held.token
        assert token is not None
        waiting = asyncio.ensure_future(wanted.acquire())
        hurrying = asyncio.ensure_future(work.hurry(hasty))
        counting = [asyncio.ensure_future(work.count(one)) for one in (holder, rival)]
        await until(lambda: len(work.values) > 5 and "done" in work.fate.values())
        await kill_primary(nodes, hearer, work.errors)
        await asyncio.wait_for(asyncio.gather(*counting), WAIT_S)
        await until(lambda: work.errors() and list(work.fate.values())[-1] == "done")
        work.is_over.set()
        await asyncio.wait_for(asyncio.gather(hurrying, following), WAIT_S)

        assert sorted(work.values) == list(range(1, 2 * TIMES + 1)), "each once"
        assert work.heard == list(range(1, 2 * TIMES + 1)), "all, and in order"

        assert held.is_held
        assert held.token == token
        assert not waiting.done()
        await holder.put("/app/job", b"mine", token=token)
        await held.release()
        await asyncio.wait_for(waiting, WAIT_S)
        assert wanted.token is not None
        assert wanted.token > token
        await wanted.release()

        there = {f"/app/short/{name}" async for name in holder.list("/app/short")}
        for path, fate in work.fate.items():
            if fate != "unknown":
                assert (path in there) == (fate == "done"), (path, fate)
