"""Requests: asked by anybody, done by the orchestrator, answered once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from millstream.cluster.aio.request_queue import RequestQueue, ask
from millstream.cluster.core.elements import REQUESTS, Request, result_path
from millstream.cluster.core.memory import Memory
from millstream.errors import OutcomeUnknownError, UsageError
from millstream.vsr.core.versions import NEVER
from support.cluster.agents_in_loop import members
from support.coordination.coordinators import WAIT_S

ROWS = {0: ("a", "b")}


async def test_a_request_is_done_and_answered(tmp_path: Path) -> None:
    async with members(tmp_path, ROWS) as here:
        await here.start("a", "b")
        request = Request("r1", "rebalance", {}, "me")
        answer = await ask(here.client, request, timeout_s=30)
        assert answer["id"] == "r1"
        with pytest.raises(UsageError) as caught:
            await ask(here.client, Request("r2", "no such", {}), timeout_s=30)
        assert caught.value.code == "unknown_request"
        async with asyncio.timeout(WAIT_S):  # answered first, then taken from the queue
            while any(await here.client.execute("QUEUE", "LEN", REQUESTS, is_change=False)):
                await here.state()


async def test_without_an_orchestrator_a_request_waits_for_the_next_one(tmp_path: Path) -> None:
    async with members(tmp_path, ROWS) as here:
        request = Request("r1", "reset", {}, "me")
        with pytest.raises(OutcomeUnknownError) as caught:
            await ask(here.client, request, timeout_s=0.1)
        assert caught.value.code == "timeout"
        await here.client.queue(REQUESTS).push(b"no request")
        await here.start("a", "b")
        async with asyncio.timeout(WAIT_S):
            while not (await here.client.lookup(result_path("r1"))).exists:
                await here.state()


async def test_old_results_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with members(tmp_path, ROWS) as here:
        await here.client.create(result_path("old"), b'{"at_ms":5,"is_done":true}', parents=True)
        queue = RequestQueue(here.client, NEVER, Memory())
        queue._swept_s = -1e9
        elements = await here.client.tree("/.system")
        assert not await queue.work((await here.state()).version(REQUESTS), elements)
        assert not (await here.client.lookup(result_path("old"))).exists
