"""The pool's shell: the order of what touches the disk, its errors, questions about groups."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from coordinators import admin, until
from millstream.coordination.aio import pool_runner as module
from millstream.coordination.aio.coordinator import Coordinator
from millstream.coordination.aio.pool_runner import POOL_FILE, read_pool_file
from millstream.coordination.core.pool_effects import FIRST_GROUP
from millstream.coordination.core.pool_messages import Address, Hello, PoolEnvelope
from millstream.errors import CorruptionError, RemoteProtocolError
from millstream.runtime.files import write_atomically

NUMBER = b"%d" % FIRST_GROUP


@asynccontextmanager
async def node_in(directory: Path, **options: Any) -> AsyncIterator[Coordinator]:
    node = await Coordinator.start(directory, **options)
    await until(lambda: all(one.replica.leading for one in node.groups.running.values()))
    try:
        yield node
    finally:
        await node.stop()


async def test_what_was_decided_is_so_after_a_restart(tmp_path: Path) -> None:
    async with node_in(tmp_path) as node:
        answer = await admin(node, b"GROUP", b"CREATE", b"5", node.node_id.hex().encode())
        assert answer == b"+OK"
        assert (await admin(node, b"GROUP", b"DELETE", NUMBER, b"CONFIRM", NUMBER)) == b"+OK"
        await until(lambda: list(node.groups.numbered) == [5])
    async with node_in(tmp_path) as node:
        assert list(node.groups.numbered) == [5]


async def test_questions_about_a_group(tmp_path: Path) -> None:
    async with node_in(tmp_path) as node:
        assert b"primary" in await admin(node, b"STATUS", NUMBER)
        assert b"NOOP" in await admin(node, b"LOG", NUMBER, b"1", b"100")
        assert (await admin(node, b"NO", b"SUCH")).startswith(b"-BADARG")
        assert (await admin(node, b"STATUS", b"77")).startswith(b"-")


async def test_a_full_disk_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DISK_FULL_RETRY_S", 0.01)
    attempts = []

    def write(path: Path, content: bytes) -> None:
        attempts.append(path)
        if len(attempts) < 4:
            raise OSError(errno.ENOSPC, "no space")
        write_atomically(path, content)

    monkeypatch.setattr(module, "write_atomically", write)
    async with node_in(tmp_path) as node:
        assert list(node.groups.numbered) == [FIRST_GROUP]
    assert len(attempts) > 3


async def test_a_failed_disk_ends_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors: list[BaseException] = []

    def fail(path: Path, content: bytes) -> None:
        raise OSError(errno.EIO, "failed")

    async with node_in(tmp_path, on_fatal=errors.append) as node:
        monkeypatch.setattr(module, "write_atomically", fail)
        node.requests.admin(
            (b"ADMIN", b"GROUP", b"CREATE", b"5", node.node_id.hex().encode()), errors.append
        )
        await until(lambda: errors)
        assert isinstance(errors[0], OSError)


async def test_a_fault_of_the_pool_ends_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors: list[BaseException] = []
    async with node_in(tmp_path, on_fatal=errors.append) as node:
        fault = AssertionError("wrong")

        def step(*_: object) -> None:
            raise fault

        monkeypatch.setattr(node.pool.pool, "step", step)
        node.requests.admin((b"ADMIN", b"NODES"), lambda _: None)
        assert errors == [fault]


async def test_a_damaged_file_is_not_begun_anew(tmp_path: Path) -> None:
    assert read_pool_file(tmp_path) is None
    async with node_in(tmp_path):
        pass
    kept = read_pool_file(tmp_path)
    assert kept is not None
    for content in (kept[:-1], b""):
        (tmp_path / POOL_FILE).write_bytes(content)
        with pytest.raises(CorruptionError):
            await Coordinator.start(tmp_path)
    (tmp_path / POOL_FILE).unlink()
    with pytest.raises(CorruptionError):
        await Coordinator.start(tmp_path)


async def test_who_takes_this_node_for_another_is_not_listened_to(tmp_path: Path) -> None:
    async with node_in(tmp_path) as node:
        info = node.pool.pool.me._replace(node_id=b"o" * 16)
        for receiver, is_let_in in ((bytes(16), True), (node.node_id, True), (b"x" * 16, False)):
            envelope = PoolEnvelope(info.node_id, 1, Hello(info, receiver))
            if is_let_in:
                node.pool.hear(envelope)
            else:
                with pytest.raises(RemoteProtocolError):
                    node.pool.hear(envelope)


async def test_a_greeting_names_who_was_spoken_to_there(tmp_path: Path) -> None:
    async with node_in(tmp_path) as node:
        place = Address("127.0.0.1", 5)
        unknown = node.pool.greeting(place)
        node.pool.who[place] = b"o" * 16
        assert b"o" * 16 in node.pool.greeting(place)
        assert b"o" * 16 not in unknown
