"""The client without `await` does what the other one does, from plain threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millstream.coordination import BlockingClient
from millstream.coordination.core.client.errors import MissingError, SessionLostError
from millstream.errors import MillstreamError, UnavailableError, UsageError
from support.coordination.coordinators import WAIT_S
from support.coordination.namespace_node import one_node


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


def close_under(address: str) -> list[MillstreamError]:
    """Close a client while other threads wait: for a change, and for a lock."""
    errors: list[MillstreamError] = []

    def waits(function: Callable[[], object]) -> None:
        try:
            function()
        except MillstreamError as error:
            errors.append(error)

    holder = BlockingClient([address], deadline_s=WAIT_S)
    with holder, BlockingClient([address], deadline_s=WAIT_S) as client:
        holder.create_namespace("/app")
        holder.create("/app/x")
        begun = threading.Event()
        client.create("/app/y")

        def hear() -> None:
            for _ in client.subscribe("/app/y"):
                begun.set()

        hearing = threading.Thread(target=waits, args=(hear,), daemon=True)
        hearing.start()
        while not begun.is_set():
            client.put("/app/y", b"")
        with holder.lock("/app/x"):
            locking = threading.Thread(
                target=waits, args=(client.lock("/app/x").acquire,), daemon=True
            )
            locking.start()
            while not holder.execute("LOCK", "INFO", "/app/x", is_change=False)[b"waiting"]:
                pass
            client.close()
            client.close()
            for thread in (hearing, locking):
                thread.join(WAIT_S)
                assert not thread.is_alive()
    with pytest.raises(UsageError) as caught:
        client.get("/app/x")
    assert caught.value.code == "closed"
    return errors


async def test_waiting_calls_fail_when_the_client_is_closed(tmp_path: Path) -> None:
    async with one_node(tmp_path) as address:
        errors = await asyncio.to_thread(close_under, address)
    assert len(errors) == 2
    assert all(isinstance(one, UnavailableError | SessionLostError) for one in errors)


def test_a_client_of_no_good_address_leaves_no_thread() -> None:
    with pytest.raises(UsageError):
        BlockingClient(["127.0.0.1:none"])
    assert not [one for one in threading.enumerate() if one.name == "coordination client"]


async def test_its_calls_take_effect(tmp_path: Path) -> None:
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
