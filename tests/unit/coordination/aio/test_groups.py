"""Groups as directories and as what runs: formatted once, opened once, removed as a whole."""

from __future__ import annotations

import errno
import os
import random
from itertools import count
from pathlib import Path

import pytest

from millstream.coordination.aio import groups as module
from millstream.coordination.aio.groups import Groups
from millstream.coordination.core.group_state import GroupState
from millstream.coordination.core.namespace.audience import Subscriber
from millstream.coordination.core.namespace.commands.subscriptions import SubscribeRequest
from millstream.coordination.core.namespace.state.run import Asker
from millstream.coordination.core.pool.effects import GroupChanged
from millstream.coordination.core.pool.group_check import REACHED
from millstream.errors import UnavailableError
from millstream.vsr.core.disk.careful_files import CarefulFiles
from millstream.vsr.core.disk.durable_steps import SUPERBLOCK
from millstream.vsr.core.disk.journal import is_formatted
from millstream.vsr.core.effects import Code, Reply
from millstream.vsr.core.hard_state import founded
from millstream.vsr.core.replica.member import Status
from support.coordination.coordinators import GROUP, ask, until
from support.kv.simulated_disk import SYNC_DIRECTORY, Crash, SimulatedDisk, nothing_happens

NODE, OTHER = b"n" * 16, b"o" * 16


class Made:
    """Groups of one node, and what they told."""

    def __init__(self, directory: Path) -> None:
        self.changes: list[GroupChanged] = []
        self.errors: list[BaseException] = []
        self.groups = Groups(
            directory, NODE, lambda *_: None, self.changes.append, self.errors.append
        )  # fmt: skip


async def test_a_group_is_formatted_opened_and_dropped(tmp_path: Path) -> None:
    made = Made(tmp_path)
    groups = made.groups
    for _ in range(2):
        await groups.format(founded(GROUP, NODE, (NODE,)))
    assert groups.here() == (GROUP,)
    for _ in range(2):
        await groups.open(GROUP, 7)
    runner = groups.numbered[7]
    assert groups.running == {GROUP: runner}
    await until(lambda: made.changes and made.changes[-1].leads)
    assert made.changes[-1].group_id == GROUP
    assert (await ask(runner, b"SET", b"k", b"v")).code is Code.OK
    for _ in range(2):
        await groups.drop(GROUP)
    assert (groups.running, groups.numbered, groups.here()) == ({}, {}, ())
    assert os.listdir(tmp_path) == []
    assert not made.errors


async def test_a_half_removed_group_is_removed_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Made(tmp_path)
    await made.groups.format(founded(GROUP, NODE, (NODE,)))

    def cut(_: Path) -> None:
        raise OSError("the process ended")

    with monkeypatch.context() as patched:
        patched.setattr(module.shutil, "rmtree", cut)
        with pytest.raises(OSError, match="ended"):
            await made.groups.drop(GROUP)
    assert made.groups.here() == ()
    assert os.listdir(tmp_path) == []


async def test_other_directories_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.restored").mkdir()
    Made(tmp_path).groups.remove_unknown(())
    (tmp_path / "notes.restored").rmdir()
    (tmp_path / ("0" * 32)).mkdir()
    (tmp_path / "notes").write_text("mine")
    (tmp_path / ("x" * 32)).mkdir()
    assert Made(tmp_path).groups.here() == (bytes(16),)
    assert len(os.listdir(tmp_path)) == 3


async def test_a_restored_directory_becomes_the_groups_when_it_is_opened(tmp_path: Path) -> None:
    groups = Made(tmp_path).groups
    await groups.format(founded(GROUP, NODE, (NODE,)))
    (tmp_path / GROUP.hex()).rename(groups.making(GROUP))
    groups.making(OTHER).mkdir()
    assert groups.here() == ()
    groups.remove_unknown((GROUP,))
    assert os.listdir(tmp_path) == [groups.making(GROUP).name]
    for _ in range(2):
        await groups.open(GROUP, 1)
    assert os.listdir(tmp_path) == [GROUP.hex()]
    await groups.close()
    groups.making(OTHER).mkdir()
    await groups.drop(OTHER)
    assert os.listdir(tmp_path) == [GROUP.hex()]


async def test_all_are_closed(tmp_path: Path) -> None:
    groups = Made(tmp_path).groups
    await groups.format(founded(GROUP, NODE, (NODE,)))
    await groups.open(GROUP, 1)
    await groups.close()
    assert groups.running == {}
    assert groups.here() == (GROUP,)


async def test_a_reported_format_survives_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = []
    for seed in range(20):
        disk = SimulatedDisk(random.Random(seed), count(1))
        monkeypatch.setattr(Groups, "disk", lambda _self, _id, disk=disk: disk)

        def killed(kind: str, name: str, disk: SimulatedDisk = disk) -> None:
            if kind == SYNC_DIRECTORY and SUPERBLOCK in disk.names():
                raise Crash

        groups, disk.before = Made(tmp_path).groups, killed
        with pytest.raises(Crash):
            await groups.format(founded(GROUP, NODE, (NODE,)))
        disk.before = nothing_happens
        await groups.format(founded(GROUP, NODE, (NODE,)))
        disk.lose_power()
        lost.append(not is_formatted(disk))
    assert not any(lost)


async def test_no_descriptor_left_is_no_failed_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Made(tmp_path)
    await made.groups.format(founded(GROUP, NODE, (NODE,)))
    files = CarefulFiles(made.groups.disk(GROUP))

    def refuse(*_: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as full:
        full.setattr(os, "open", refuse)
        files.rename(SUPERBLOCK, "moved")
        with pytest.raises(UnavailableError) as told:
            files.write("new", [(0, b"content")])
    assert told.value.code == "disk_full"
    files.rename("moved", SUPERBLOCK)
    files.close()


async def test_a_group_works_where_nothing_can_be_noted_beside_its_directory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "coord").mkdir()
    (tmp_path / ("coord" + REACHED)).write_text("no directory can be made here")
    made = Made(tmp_path / "coord")
    await made.groups.format(founded(GROUP, NODE, (NODE,)))
    await made.groups.open(GROUP, 7)
    await until(lambda: made.changes and made.changes[-1].leads)
    assert "older copies of groups are not recognized" in caplog.text
    await made.groups.drop(GROUP)
    assert made.groups.here() == ()


async def test_subscribers_of_a_removed_group_are_told(tmp_path: Path) -> None:
    made = Made(tmp_path)
    await made.groups.format(founded(GROUP, NODE, (NODE,)))
    await made.groups.open(GROUP, 7)
    runner = made.groups.numbered[7]
    await until(lambda: made.changes and made.changes[-1].leads)
    for words in ((b"CREATENAMESPACE", b"/ns"), (b"MARK", b"/ns")):
        assert (await ask(runner, b"0", *words)).value == b"+OK"
    machine, subscriber = runner.replica.machine, Subscriber(lambda: None, Asker())
    assert isinstance(machine, GroupState)

    def ended() -> bool:
        *_, message = subscriber.take(1000)
        return b"overrun" in message.payload and machine.audience.is_empty

    def subscribe() -> None:
        lsn = runner.replica.commit_lsn
        reply = machine.subscribe(subscriber, SubscribeRequest(((b"ns",),)), lsn, lambda _: None)
        assert reply == Reply(0, Code.OK, b"", lsn)

    subscribe()
    made.groups._changed(made.changes[-1]._replace(status=Status.RETIRED))
    assert ended()
    subscribe()
    await made.groups.drop(GROUP)
    assert ended()
