"""Folders of groups whose making is cut short before any effect of the disk: founded and restored.

The next start finishes what the node began, or removes what nobody was told of.
"""

from __future__ import annotations

import asyncio
import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from millstream.coordination.aio import groups as groups_module
from millstream.coordination.aio import pool_copies
from millstream.coordination.aio.coordinator import Coordinator
from millstream.runtime import disk as disk_module
from millstream.runtime import files as files_module
from millstream.runtime.disk import OsDisk, OsFile
from support.coordination.coordinators import admin, ask, until

EFFECTS_MAX = 120
"""More than there are; a test fails if it is not."""


@contextmanager
def cut_after(effects: int) -> Iterator[dict[str, int]]:
    """Nothing reaches the disk after so many effects; the last write is cut in the middle."""
    left = {"count": effects}

    def counted(call: Any, *args: Any, **options: Any) -> Any:
        left["count"] -= 1
        if left["count"] >= 0:
            return call(*args, **options)
        if left["count"] == -1 and call is write_at:
            file, offset, data = args
            write_at(file, offset, data[: len(data) // 2])
        raise OSError(errno.EIO, "the process ended")

    write_at = OsFile.write_at
    with pytest.MonkeyPatch.context() as patched:
        for owner, name in (
            (OsFile, "write_at"), (OsFile, "truncate"), (OsFile, "sync"), (OsDisk, "rename"),
            (Path, "mkdir"), (Path, "rename"), (disk_module, "sync_directory"),
            (groups_module, "sync_directory"), (files_module, "sync_directory"),
            (pool_copies, "write_atomically"), (shutil, "rmtree"),
        ):  # fmt: skip
            real = getattr(owner, name)
            patched.setattr(
                owner, name, lambda *args, real=real, **more: counted(real, *args, **more)
            )
        yield left


def folders(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir() if path.is_dir()}


def is_led(node: Coordinator) -> bool:
    return all(one.replica.leading for one in node.groups.running.values())


async def started(directory: Path) -> Coordinator:
    node = await Coordinator.start(directory)
    await until(lambda: is_led(node))
    assert folders(directory) == {group_id.hex() for group_id in node.groups.running}
    return node


async def test_a_first_start_is_finished_wherever_it_was_cut(tmp_path: Path) -> None:
    for effects in range(EFFECTS_MAX):
        directory = tmp_path / str(effects)
        with cut_after(effects) as left, suppress(Exception):  # the process ended
            node = await Coordinator.start(directory)
            await until(lambda: left["count"] < 0 or is_led(node))  # noqa: B023
            await node.stop()
        node = await started(directory)
        assert list(node.groups.numbered) == [1]
        await node.stop()
        if left["count"] >= 0:
            break
    assert 20 < effects < EFFECTS_MAX - 1


async def test_a_restored_group_is_there_as_a_whole_or_gone_wherever_it_was_cut(
    tmp_path: Path,
) -> None:
    directory, file = tmp_path / "node", tmp_path / "backup"
    node = await started(directory)
    assert (await ask(node.groups.numbered[1], b"SET", b"key", b"value")).code.name == "OK"
    assert (await admin(node, b"BACKUP", b"1", str(file).encode())).startswith(b":")
    await node.stop()
    was_there = []
    for effects in range(EFFECTS_MAX):
        node = await started(directory)
        number = b"%d" % (effects + 2)
        with cut_after(effects) as left:
            asked = asyncio.ensure_future(admin(node, b"RESTORE", number, str(file).encode()))
            await until(lambda: asked.done() or left["count"] < 0)  # noqa: B023
            await asyncio.wait([asked], timeout=0.05)
            is_acknowledged = asked.done() and asked.result().startswith(b":")
            asked.cancel()
            await node.stop()
        node = await started(directory)
        runner = node.groups.numbered.get(int(number))
        was_there.append(runner is not None)
        assert is_acknowledged <= was_there[-1]
        if runner is not None:
            assert (await ask(runner, b"GET", b"key")).value == b"=value"
            answer = await admin(node, b"GROUP", b"DELETE", number, b"CONFIRM", number)
            assert answer == b"+OK"
            await until(lambda: len(folders(directory)) == 1)
        await node.stop()
        if left["count"] >= 0:
            break
    assert 15 < effects < EFFECTS_MAX - 1
    assert not was_there[0]
    assert was_there[-1]
