"""The journal's thread: order, one append for many, space that comes back, errors that end it."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from millstream.errors import CorruptionError, UnavailableError
from millstream.runtime.disk import OsDisk
from millstream.vsr.aio import journal as module
from millstream.vsr.aio.journal import JournalThread
from millstream.vsr.core.disk.journal import Journal, format_group
from millstream.vsr.core.effects import Append, Install, WriteHardState, WriteSnapshot
from millstream.vsr.core.entries import GENESIS, Entry
from millstream.vsr.core.snapshots import snapshot_of
from support.coordination.simulated_journal import STANDING, JournalWorld
from support.kv.simulated_disk import SYNC, WRITE, SimulatedDisk
from support.node.waiting import until


class Group:
    """An open journal, what it reported, and a disk whose effects can be held up or fail."""

    def __init__(self) -> None:
        self.world = JournalWorld(1)
        self.disk: SimulatedDisk = self.world.disk
        format_group(self.disk, STANDING)
        self.done: list[int] = []
        self.given_up: list[int] = []
        self.errors: list[BaseException] = []
        self.news = asyncio.Event()
        self.loop = asyncio.get_running_loop()
        self.effects: list[str] = []
        self.failing: dict[str, int] = {}
        self.failing_name = ""
        self.gate = threading.Event()
        self.gate.set()
        self.disk.before = self.before
        self.is_closed = False
        self.journal: JournalThread

    def before(self, kind: str, name: str) -> None:
        assert threading.current_thread() is not threading.main_thread()
        assert self.gate.wait(60)
        self.effects.append(kind)
        self.loop.call_soon_threadsafe(self.news.set)
        if kind in self.failing and self.failing_name in name:
            raise OSError(self.failing[kind], "failed")

    def on_done(self, op: int) -> None:
        self.done.append(op)
        self.news.set()

    def on_fatal(self, error: BaseException) -> None:
        self.errors.append(error)
        self.news.set()

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Wait; something is reported, or an effect comes, before it is so."""
        while not is_so():
            self.news.clear()
            await asyncio.wait_for(self.news.wait(), 60)

    async def until_done(self, *done: int) -> None:
        await self.until(lambda: self.done == list(done) or bool(self.errors))
        assert self.done == list(done)

    def entries(self, number: int) -> list[Entry]:
        return self.world.entries(GENESIS, number)


@asynccontextmanager
async def opened() -> AsyncIterator[Group]:
    group = Group()
    group.journal = await JournalThread.open(
        group.disk, on_done=group.on_done, on_fatal=group.on_fatal,
        on_given_up=group.given_up.append,
    )  # fmt: skip
    try:
        yield group
    finally:
        group.gate.set()
        if not group.is_closed:
            await group.journal.close()


async def test_steps_are_reported_in_order_and_are_durable() -> None:
    async with opened() as group:
        entries = group.entries(5)
        hard_state = STANDING._replace(view=1)
        group.journal.carry_out(Append(1, tuple(entries[:2])))
        group.journal.carry_out(WriteHardState(2, hard_state))
        group.journal.carry_out(Append(3, tuple(entries[2:4])))
        group.journal.carry_out(
            Install(4, 3, tuple(entries[3:]), hard_state._replace(last_normal=(0, 1)))
        )
        await group.until_done(1, 2, 3, 4)
    group.disk.before = lambda kind, name: None
    group.disk.lose_power()
    image = Journal(group.disk).image
    assert image.headers == tuple(entry.header for entry in entries)
    assert image.hard_state == hard_state._replace(last_normal=(0, 1))


async def test_appends_that_wait_become_one() -> None:
    async with opened() as group:
        entries = group.entries(9)
        group.journal.carry_out(Append(1, tuple(entries[:1])))
        await group.until_done(1)
        group.gate.clear()
        group.journal.carry_out(WriteHardState(2, STANDING))
        await asyncio.sleep(0)
        for op in range(3, 11):
            group.journal.carry_out(Append(op, tuple(entries[op - 2 : op - 1])))
        group.effects.clear()
        group.gate.set()
        await group.until_done(*range(1, 11))
        assert group.effects.count(SYNC) == 2 + 2  # both copies; entries and slots


async def test_a_long_append_is_not_made_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "APPEND_BYTES_MAX", 1)
    async with opened() as group:
        entries = group.entries(3)
        for op, entry in enumerate(entries):
            group.journal.carry_out(Append(op, (entry,)))
        await group.until_done(0, 1, 2)
        assert group.effects.count(SYNC) >= 6


async def test_without_space_a_step_waits_and_nothing_overtakes_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "DISK_FULL_RETRY_S", 0.001)
    async with opened() as group:
        group.failing = {WRITE: errno.ENOSPC}
        group.effects.clear()
        group.journal.carry_out(Append(1, tuple(group.entries(2))))
        group.journal.carry_out(WriteHardState(2, STANDING._replace(view=1)))
        await group.until(lambda: group.effects.count(WRITE) >= 3)
        assert group.journal.is_full
        assert group.done == []
        group.failing = {}
        await group.until_done(1, 2)
        assert not group.journal.is_full
        assert not group.errors


async def test_a_snapshot_without_space_is_given_up_and_keeps_no_space_and_no_append_waiting() -> (
    None
):
    async with opened() as group:
        group.failing, group.failing_name = {WRITE: errno.ENOSPC}, "snapshot"
        snapshot = snapshot_of(1, GENESIS, b"s" * 300)
        group.journal.carry_out(WriteSnapshot(1, snapshot))
        group.journal.carry_out(Append(2, tuple(group.entries(2))))
        await group.until_done(2)
        assert group.given_up == [1]
        assert not group.journal.is_full
        assert not [name for name in group.disk.names() if name.startswith("snapshot")]
        group.failing = {}
        group.journal.carry_out(WriteSnapshot(3, snapshot))
        await group.until_done(2, 3)


async def test_a_journal_that_waits_for_space_can_be_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "DISK_FULL_RETRY_S", 0.001)
    async with opened() as group:
        group.failing = {WRITE: errno.ENOSPC}
        group.journal.carry_out(Append(1, tuple(group.entries(2))))
        await group.until(lambda: group.journal.is_full)
        await asyncio.wait_for(group.journal.close(), 60)
        group.is_closed = True
        group.journal.carry_out(Append(2, tuple(group.entries(2))))
        assert group.done == []


async def test_a_journal_can_be_closed_while_a_step_is_about_to_find_no_space() -> None:
    async with opened() as group:
        group.gate.clear()
        group.failing = {WRITE: errno.ENOSPC}
        group.journal.carry_out(Append(1, tuple(group.entries(2))))
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(group.journal.close())
        await asyncio.sleep(0)
        group.is_closed = True
        group.gate.set()
        await asyncio.wait_for(closing, 60)
        assert group.done == group.errors == []


@pytest.mark.parametrize(
    ("kind", "number"), [(SYNC, errno.EIO), (SYNC, errno.ENOSPC), (WRITE, errno.EIO)]
)
async def test_a_failed_disk_is_told_once_and_ends_everything(kind: str, number: int) -> None:
    async with opened() as group:
        entries = group.entries(3)
        group.journal.carry_out(Append(1, tuple(entries[:1])))
        await group.until_done(1)
        group.failing = {kind: number}
        group.journal.carry_out(Append(2, tuple(entries[1:2])))
        group.journal.carry_out(WriteHardState(3, STANDING._replace(view=1)))
        await group.until(lambda: bool(group.errors))
        group.failing = {}
        group.journal.carry_out(Append(4, tuple(entries[1:2])))
        await asyncio.sleep(0)
        (error,) = group.errors
        assert isinstance(error, UnavailableError)
        assert error.code == "disk_failed"
        assert group.done == [1]


async def test_a_step_that_cannot_be_is_a_fault_and_ends_everything() -> None:
    async with opened() as group:
        group.journal.carry_out(Append(1, tuple(group.entries(2)[1:])))
        await group.until(lambda: bool(group.errors))
        assert isinstance(group.errors[0], CorruptionError)
        assert group.done == []


async def test_too_many_steps_are_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STEPS_MAX", 1)
    async with opened() as group:
        group.gate.clear()
        group.journal.carry_out(WriteHardState(1, STANDING))
        group.journal.carry_out(WriteHardState(2, STANDING))
        with pytest.raises(AssertionError, match="more steps wait"):
            group.journal.carry_out(WriteHardState(3, STANDING))


async def test_files_that_cannot_be_opened_leave_no_thread() -> None:
    group = Group()
    group.failing = {SYNC: errno.EIO}
    before = threading.active_count()
    with pytest.raises(UnavailableError):
        await JournalThread.open(group.disk, on_done=group.on_done, on_fatal=group.on_fatal)
    until(lambda: threading.active_count() <= before)


async def test_on_real_files_the_image_is_given_once(tmp_path) -> None:
    disk = OsDisk(tmp_path / "group")
    format_group(disk, STANDING)
    done = asyncio.Event()
    entries = JournalWorld(2).entries(GENESIS, 7)
    journal = await JournalThread.open(
        disk, on_done=lambda _: done.set(), on_fatal=lambda error: None
    )
    journal.carry_out(Append(1, tuple(entries)))
    await asyncio.wait_for(done.wait(), 60)
    await journal.close()
    journal = await JournalThread.open(disk, on_done=lambda _: None, on_fatal=lambda _: None)
    image = journal.take_image()
    assert [image.entry(lsn) for lsn in range(1, 8)] == entries
    assert journal.take_image().hard_state is None
    await journal.close()
