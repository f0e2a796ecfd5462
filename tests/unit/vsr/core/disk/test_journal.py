"""The steps of a journal on a disk that does not fail; tests/crash has the one that does."""

from __future__ import annotations

import errno
import random
from itertools import count

import pytest

from millstream.errors import CorruptionError, UnavailableError
from millstream.runtime.disk import OsDisk
from millstream.vsr.core.disk.durable_steps import SLOT_BYTES, header_file_name, segment_name
from millstream.vsr.core.disk.journal import Journal, format_group, is_formatted
from millstream.vsr.core.entries import GENESIS, HEADER_BYTES
from support.coordination.simulated_journal import (
    GROUP,
    SEGMENT_BYTES,
    STANDING,
    JournalWorld,
    found_in,
)
from support.kv.simulated_disk import SYNC, WRITE, SimulatedDisk, SimulatedFile, nothing_happens


@pytest.fixture
def world() -> JournalWorld:
    world = JournalWorld(3)
    world.start()
    return world


def names(world: JournalWorld, prefix: str) -> list[str]:
    return [name for name in world.disk.names() if name.startswith(prefix)]


def test_a_group_is_formatted_once() -> None:
    disk = SimulatedDisk(random.Random(1), count(1))
    assert not is_formatted(disk)
    format_group(disk, STANDING)
    assert is_formatted(disk)
    with pytest.raises(AssertionError, match="deny what the first one promised"):
        format_group(disk, STANDING)
    journal = Journal(disk)
    assert journal.image.hard_state == STANDING
    assert (journal.op_lsn, journal.image.base) == (0, GENESIS)


def test_on_a_real_file_system(tmp_path) -> None:
    disk = OsDisk(tmp_path / "group")
    format_group(disk, STANDING)
    journal = Journal(disk)
    entries = JournalWorld(1).entries(GENESIS, 6)
    journal.append(entries[:4])
    hard_state = STANDING._replace(view=1, last_normal=(0, 1), commit_hint=2)
    journal.install(3, entries[3:], hard_state)
    journal.close()
    image = Journal(disk).image
    assert found_in(image).log == tuple(entries)
    assert image.hard_state == hard_state
    assert [name.partition("-")[0] for name in disk.names()] == [
        "headers", "journal", "journal", "superblock",
    ]  # fmt: skip


def test_an_append_is_two_syncs(world: JournalWorld) -> None:
    world.append(1)
    seen: list[tuple[str, str]] = []
    world.disk.before = lambda kind, name: seen.append((kind, name))
    world.append(3)
    assert [name[:7] for kind, name in seen if kind == SYNC] == ["journal", "headers"]
    assert [name[:7] for kind, name in seen] == ["journal", "journal", "headers", "headers"]


def test_full_segments_are_followed_by_new_ones(world: JournalWorld) -> None:
    for _ in range(8):
        world.append(1, 900)
    sizes = [len(world.disk.files[name].data) for name in names(world, "journal")]
    assert len(sizes) > 2
    assert all(size >= SEGMENT_BYTES for size in sizes[:-1])
    assert all(size < SEGMENT_BYTES + HEADER_BYTES + 1000 for size in sizes)
    world.restart_cleanly()


def test_entries_that_do_not_follow_are_refused_and_nothing_is_written(
    world: JournalWorld,
) -> None:
    world.append(2)
    entries = world.entries(world.state.link(2), 3)
    for wrong in (entries[1:], entries[::-1], [entries[0], entries[2]]):
        with pytest.raises(CorruptionError, match="does not follow"):
            world.open.append(wrong)
    with pytest.raises(CorruptionError, match="does not follow"):
        world.open.install(1, entries, world.state.hard_state)
    world.restart_cleanly()
    assert world.open.op_lsn == 2


def test_promises_never_go_back(world: JournalWorld) -> None:
    world.append(4)
    world.promise()
    hard_state = world.state.hard_state
    for name, value in (("view", 0), ("group_id", bytes(16)), ("node_id", bytes(16))):
        with pytest.raises(AssertionError):
            world.open.write_hard_state(hard_state._replace(**{name: value}))
    higher = hard_state._replace(incarnation=2, last_normal=(0, 1))
    world.open.write_hard_state(higher)
    for name, value in (("incarnation", 1), ("last_normal", (0, 0))):
        with pytest.raises(AssertionError):
            world.open.write_hard_state(higher._replace(**{name: value}))


def test_committed_entries_are_never_cut(world: JournalWorld) -> None:
    world.append(4)
    hard_state = world.state.hard_state._replace(commit_hint=3)
    world.open.write_hard_state(hard_state)
    with pytest.raises(AssertionError):
        world.open.install(2, [], hard_state)
    world.open.install(2, world.state.log[2:], hard_state)  # the same again: a repair
    assert world.open.op_lsn == 4


@pytest.mark.parametrize("number", [0, 2])
def test_a_view_that_begins_with_this_log_writes_no_file_anew(
    world: JournalWorld, number: int
) -> None:
    world.append(4)
    before = world.disk.names()
    world.take_over(number)
    assert world.disk.names() == before
    assert world.open.op_lsn == 4 + number
    assert world.open.root.hard_state == world.state.hard_state
    world.append(1)
    world.restart_cleanly()


def test_entries_of_an_earlier_view_and_the_hard_state_become_durable_together(
    world: JournalWorld,
) -> None:
    world.append(4)
    before = names(world, "headers")
    world.install(0, 2)
    assert names(world, "headers") != before
    assert world.state.hard_state.view > world.state.log[-1].header.view


def test_a_learners_log_may_be_cut_and_its_hint_with_it(world: JournalWorld) -> None:
    world.append(4)
    nobody = world.state.hard_state.configuration._replace(members=())
    hard_state = world.state.hard_state._replace(commit_hint=4, configuration=nobody)
    world.open.write_hard_state(hard_state)
    world.open.install(1, world.state.log[1:2], hard_state)
    assert world.open.op_lsn == 2
    assert world.open.root.hard_state.commit_hint == 2


def test_a_commit_hint_is_never_above_what_is_here(world: JournalWorld) -> None:
    world.append(2)
    world.open.write_hard_state(world.state.hard_state._replace(commit_hint=9))
    assert world.open.root.hard_state.commit_hint == 2


def test_a_snapshot_lets_whole_segments_go(world: JournalWorld) -> None:
    for _ in range(12):
        world.append(1, 900)
    before = names(world, "journal")
    made = world.make_snapshot(9)
    with pytest.raises(AssertionError):
        world.open.adopt_snapshot(made.id)
    world.open.write_snapshot(made)
    with pytest.raises(AssertionError):
        world.open.truncate_prefix(9)
    world.open.adopt_snapshot(made.id)
    world.open.truncate_prefix(9)
    after = names(world, "journal")
    assert 0 < len(after) < len(before)
    assert set(after) < set(before)
    world.open.close()
    journal = Journal(world.disk, SEGMENT_BYTES)
    assert 0 < journal.image.base.lsn <= 9
    assert journal.image.snapshot == made
    assert journal.op_lsn == 12
    journal.truncate_prefix(9)
    assert names(world, "journal") == after
    assert len(names(world, "headers")) == 1


def test_an_older_snapshot_goes_when_the_next_is_stable(world: JournalWorld) -> None:
    world.append(3)
    for _ in range(2):
        made = world.make_snapshot(2)
        world.open.write_snapshot(made)
        assert len(names(world, "snapshot")) == made.id.number
        world.open.adopt_snapshot(made.id)
        world.state = world.state._replace(snapshot=made.id)
    assert names(world, "snapshot") == ["snapshot-00000002"]


def test_leftovers_of_a_crash_are_removed(world: JournalWorld) -> None:
    world.append(2)
    for name in ("journal-00000009", "headers-00000010", "snapshot-00000004.new", "snapshot-7"):
        world.disk.open(name, create=True).write_at(0, b"rubbish")
    world.restart_cleanly()
    assert len(world.disk.names()) == 3
    world.install(1, 2)
    assert names(world, "headers") == ["headers-00000012"]
    assert world.open.root.hard_state.group_id == GROUP


@pytest.mark.parametrize("full", ["journal", "headers"])
def test_steps_that_find_no_space_leave_no_files(world: JournalWorld, full: str) -> None:
    world.append(9)
    before = world.disk.names()
    hard_state = world.promised()._replace(last_normal=(0, 1))
    suffix = world.entries(world.state.link(2), 3)

    def no_space(kind: str, name: str) -> None:
        if kind == WRITE and name.startswith(full):
            raise OSError(errno.ENOSPC, "No space left on device")

    world.disk.before = no_space
    for _ in range(3):
        with pytest.raises(UnavailableError, match="No space"):
            world.open.install(2, suffix, hard_state)
        assert world.disk.names() == before
    world.disk.before = nothing_happens
    world.open.install(2, suffix, hard_state)
    assert world.open.op_lsn == 5


def test_steps_that_find_no_descriptor_are_done_or_wait(
    world: JournalWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.append(9)
    journal = world.open
    hard_state = world.promised()._replace(last_normal=(0, 1))
    suffix = world.entries(world.state.link(2), 3)

    def refuse(*_: object, **__: object) -> list[str]:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as full:
        full.setattr(world.disk, "names", refuse)
        with monkeypatch.context() as fuller:
            fuller.setattr(world.disk, "open", refuse)
            with pytest.raises(UnavailableError, match="have fewer files open"):
                journal.install(2, suffix, hard_state)
        journal.install(2, suffix, hard_state)
        made = world.make_snapshot(3)
        journal.write_snapshot(made)
        with pytest.raises(UnavailableError, match="have fewer files open"):
            journal.adopt_snapshot(made.id)
    journal.adopt_snapshot(made.id)
    assert journal.op_lsn == 5
    assert len(names(world, "headers")) == 1


def test_a_learner_that_lost_its_log_keeps_what_it_learns_anew(world: JournalWorld) -> None:
    idle = STANDING._replace(configuration=STANDING.configuration._replace(members=()))
    disk = SimulatedDisk(random.Random(1), count(1))
    format_group(disk, idle)
    journal = Journal(disk)
    entries = world.entries(GENESIS, 50)
    journal.append(entries)
    journal.write_hard_state(idle._replace(commit_hint=50))
    for name in [name for name in disk.names() if name != "superblock"]:
        disk.files.pop(name)
        disk.synced.pop(name)
    journal = Journal(disk)
    assert journal.image.is_journal_lost
    journal.install(0, entries[:10], idle)
    journal.append(entries[10:20])
    journal.close()
    image = Journal(disk).image
    assert not image.is_journal_lost
    assert image.op_lsn == 20


def test_ends_that_are_replaced_again_and_again_leave_few_segments(world: JournalWorld) -> None:
    world.open.segments_few = 8
    most = 0
    for _ in range(100):
        world.install(1, 2)
        most = max(most, len(world.open.root.layout.segments))
    size = sum(len(world.disk.files[name].data) for name in names(world, "journal"))
    assert most <= 8 + 2 * (size // SEGMENT_BYTES + 1)
    assert len(names(world, "journal")) == len(world.open.root.layout.segments)
    world.restart_cleanly()
    assert world.open.op_lsn == world.state.op_lsn > 100


def test_small_segments_go_along_when_an_end_is_cut(world: JournalWorld) -> None:
    world.open.segments_few = 99
    for _ in range(4):
        world.install(0, 1)
    world.open.segments_few = 3
    assert len(world.open.root.layout.segments) == 4
    world.install(1, 0)
    assert [tuple(one)[1:] for one in world.open.root.layout.segments] == [(1, 0)]
    world.append(1)
    assert len(world.open.root.layout.segments) == 1
    world.restart_cleanly()


@pytest.mark.parametrize("harm", ["bit", "unreadable", "slot"])
def test_what_is_damaged_is_not_taken_along_and_hides_nothing(
    world: JournalWorld, harm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.open.segments_few = 99
    for _ in range(4):
        world.install(0, 2)
    world.open.segments_few = 3
    second = segment_name(world.open.root.layout.segments[1].segment)
    if harm == "bit":
        world.disk.files[second].data[HEADER_BYTES + 8] ^= 1
    elif harm == "slot":
        headers = header_file_name(world.open.root.layout.headers)
        world.disk.files[headers].data[3 * SLOT_BYTES + 5] ^= 1
    else:
        read_at = SimulatedFile.read_at

        def fail(file: SimulatedFile, offset: int, size: int) -> bytes:
            if file.content.name == second:
                raise OSError(errno.EIO, "Input/output error")
            return read_at(file, offset, size)

        monkeypatch.setattr(SimulatedFile, "read_at", fail)
    world.install(0, 1)
    monkeypatch.undo()
    assert second in world.disk.names()
    image = Journal(world.disk, SEGMENT_BYTES).image
    assert list(image.faulty()) == ([3] if harm == "bit" else [])
    assert image.op_lsn == 9
