"""The pool's shell: the order of what touches the disk, its errors, questions about groups."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from millstream.coordination.aio import pool_copies
from millstream.coordination.aio import pool_runner as module
from millstream.coordination.aio.coordinator import Coordinator
from millstream.coordination.aio.groups import Groups
from millstream.coordination.aio.pool_copies import POOL_FILES
from millstream.coordination.core.pool.effects import FIRST_GROUP
from millstream.coordination.core.pool.membership import REMOVED
from millstream.coordination.core.pool.messages import Address, Deleted, Hello, PoolEnvelope
from millstream.errors import CorruptionError, RemoteProtocolError, UnavailableError
from millstream.runtime.disk import OsFile
from millstream.runtime.files import write_atomically
from millstream.vsr.core.disk.reached_file import SET_BACK
from support.coordination.coordinators import admin, until

NUMBER = b"%d" % FIRST_GROUP


@asynccontextmanager
async def node_in(directory: Path, **options: Any) -> AsyncIterator[Coordinator]:
    node = await Coordinator.start(directory, **options)
    await until(lambda: all(one.replica.leading for one in node.groups.running.values()))
    try:
        yield node
    finally:
        await node.stop()


async def test_decisions_survive_a_restart(tmp_path: Path) -> None:
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


async def test_a_removed_node_says_so_in_its_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with node_in(tmp_path) as node:
        told = Deleted(node.node_id, is_answer=False)
        node.pool.hear(PoolEnvelope(b"x" * 16, 1, told))
        await until(lambda: REMOVED in caplog.text)
        assert REMOVED.encode() in await admin(node, b"JOIN", b"127.0.0.1", b"1")


async def test_a_full_disk_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DISK_FULL_RETRY_S", 0.01)
    attempts = []

    def write(path: Path, content: bytes) -> None:
        attempts.append(path)
        if len(attempts) < 4:
            raise OSError(errno.ENOSPC, "no space")
        write_atomically(path, content)

    monkeypatch.setattr(pool_copies, "write_atomically", write)
    async with node_in(tmp_path) as node:  # a start does not wait for it
        await until(lambda: list(node.groups.numbered) == [FIRST_GROUP])
        assert not node.pool.is_disk_full
    assert len(attempts) > 3


async def test_a_failed_disk_ends_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors: list[BaseException] = []

    def fail(path: Path, content: bytes) -> None:
        raise OSError(errno.EIO, "failed")

    async with node_in(tmp_path, on_fatal=errors.append) as node:
        monkeypatch.setattr(pool_copies, "write_atomically", fail)
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
    async with node_in(tmp_path) as node:
        node_id = node.node_id
    first, second = (tmp_path / name for name in POOL_FILES)
    kept = first.read_bytes()
    for content in (kept[:-1], b""):
        first.write_bytes(content)
        async with node_in(tmp_path) as node:
            assert node.node_id == node_id
        assert first.read_bytes() == kept
    for content in (kept[:-1], b""):
        for path in (first, second):
            path.write_bytes(content)
        with pytest.raises(CorruptionError):
            await Coordinator.start(tmp_path)
    first.unlink()
    second.unlink()
    with pytest.raises(CorruptionError, match="is gone"):
        await Coordinator.start(tmp_path)


def no_space(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


async def test_a_restart_on_a_full_disk_writes_no_file_of_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with node_in(tmp_path):
        pass
    monkeypatch.setattr(pool_copies, "write_atomically", no_space)
    for join in ((), (Address("127.0.0.1", 1),)):
        async with node_in(tmp_path, join=join) as node:
            assert list(node.groups.numbered) == [FIRST_GROUP]
            assert not node.pool.is_disk_full


async def test_a_group_that_finds_no_space_is_put_off_and_the_others_are_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "OPEN_RETRY_S", 0.01)
    async with node_in(tmp_path) as node:
        node_id = node.node_id.hex().encode()
        assert await admin(node, b"GROUP", b"CREATE", b"5", node_id) == b"+OK"
        assert await admin(node, b"GROUP", b"CREATE", b"6", node_id) == b"+OK"
        await until(lambda: len(node.groups.numbered) == 3)
        running = node.groups.running
        await until(lambda: all(one.replica.commit_lsn for one in running.values()))
        first, second = sorted(node.groups.running)[:2]
    folders = [tmp_path / group_id.hex() for group_id in (first, second)]
    write_at, is_full = OsFile.write_at, True

    def write(file: OsFile, offset: int, data: bytes) -> None:
        if is_full and offset + len(data) > file.size():
            no_space()
        write_at(file, offset, data)

    monkeypatch.setattr(OsFile, "write_at", write)
    for folder in folders:
        headers = next(folder.glob("headers-*"))
        headers.write_bytes(headers.read_bytes()[:-1])
    node = await Coordinator.start(tmp_path)
    assert len(node.groups.numbered) == 1
    assert node.figures()["coord_disk_full"] > 0
    numbers = {node.pool.pool.tables.number_of(group_id): group_id for group_id in (first, second)}
    [deleted, other] = sorted(numbers, reverse=True)
    for asked in ((b"STATUS", b"%d" % other), (b"LOG", b"%d" % other, b"1", b"9")):
        assert b"space again" in await admin(node, *asked)
    gone = tmp_path / numbers[deleted].hex()
    other_node = node.pool.pool.me._replace(node_id=b"o" * 16)
    node.pool.pool.tables.note_node(other_node)
    node.pool.hear(PoolEnvelope(other_node.node_id, 1, Deleted(numbers[deleted], is_answer=False)))
    await until(lambda: not gone.exists())
    is_full = False
    await until(lambda: not node.pool.is_disk_full)
    await until(lambda: all(one.replica.leading for one in node.groups.running.values()))
    assert len(node.groups.running) == 2
    assert not gone.exists()
    await node.stop()


async def test_a_group_that_was_put_off_and_stays_closed_waits_for_no_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "OPEN_RETRY_S", 0.01)
    async with node_in(tmp_path):
        pass
    errors = [UnavailableError("full", code="disk_full"), CorruptionError("old", code=SET_BACK)]

    async def refuse(*_: object) -> None:
        raise errors.pop(0)

    monkeypatch.setattr(Groups, "open", refuse)
    node = await Coordinator.start(tmp_path)
    await until(lambda: node.pool.set_back)
    assert not node.pool.is_disk_full
    assert not errors
    await node.stop()


async def test_messages_for_another_node_are_ignored(tmp_path: Path) -> None:
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
