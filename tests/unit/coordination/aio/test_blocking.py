"""The client without `await` does what the other one does, from plain threads."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from coordinators import WAIT_S
from millstream.coordination import BlockingClient
from millstream.coordination.core.client_errors import MissingError
from namespace_node import one_node


def use(address: str) -> None:
    """Do a little of everything."""
    with BlockingClient([address], deadline_s=WAIT_S) as client:
        client.create_namespace("/app")
        assert client.create("/app/x", b"1").is_new
        with client.lock("/app/x") as lock:
            client.put("/app/x", b"2", token=lock.token)
            assert lock.is_held
        assert not lock.is_held
        assert client.get("/app/x").data == b"2"
        assert list(client.list("/app")) == ["x"]
        with pytest.raises(MissingError):
            client.get("/app/none")
        with client.transaction() as transaction:
            transaction.put("/app/x", b"3").create("/app/y", b"new")
        assert len(transaction.replies) == 2
        client.create("/app/count", type="COUNTER")
        assert client.counter("/app/count").add(3).value == 3
        assert client.client_id


def follow(address: str) -> list[str]:
    """Hear what another client does."""
    heard: list[str] = []
    with BlockingClient([address], deadline_s=WAIT_S) as client:
        client.create_namespace("/app")
        client.create("/app/x")
        after = client.attributes("/app/x").version.lsn
        begun = client.subscribe("/app", "TREE", after=None)
        hearing = threading.Thread(target=lambda: heard.extend(one.op for one in begun))
        hearing.start()
        while not heard:
            client.put("/app/x", b"")
        client.delete("/app/x")
        client.delete_namespace("/app")
        hearing.join(WAIT_S)
        assert after > 0
    return heard


def work(address: str) -> list[bytes]:
    """Have a queue worked off by plain functions."""
    done: list[bytes] = []

    def handle(item: Any) -> None:
        if item.value == b"stop":
            raise KeyError("enough")
        done.append(item.value)

    with BlockingClient([address], deadline_s=WAIT_S) as client:
        client.create_namespace("/app")
        client.create("/app/jobs", b"a", b"b", b"stop", type="QUEUE")
        with pytest.raises(KeyError):
            client.queue("/app/jobs").work(handle)
        assert client.queue("/app/jobs").length() == (1, 0)
    return done


async def test_what_it_does_is_done(tmp_path: Path) -> None:
    async with one_node(tmp_path) as address:
        await asyncio.to_thread(use, address)


async def test_changes_come_in_a_for_loop(tmp_path: Path) -> None:
    async with one_node(tmp_path) as address:
        heard = await asyncio.to_thread(follow, address)
    assert heard[0] == "put"
    assert "delete" in heard


async def test_a_plain_function_works_a_queue_off(tmp_path: Path) -> None:
    async with one_node(tmp_path) as address:
        assert await asyncio.to_thread(work, address) == [b"a", b"b"]


async def test_no_thread_stays(tmp_path: Path) -> None:
    async with one_node(tmp_path) as address:
        await asyncio.to_thread(use, address)
    assert not [one for one in threading.enumerate() if one.name == "coordination client"]
