"""What a check says of a group's files, sound and damaged."""

from __future__ import annotations

import pytest

from millstream.coordination.core.pool.file_format import Phase
from millstream.coordination.core.pool.group_check import (
    REMOVED,
    RESTORED,
    GroupCheck,
    Known,
    check_group,
)
from millstream.vsr.core.disk.durable_steps import COPY_BYTES
from support.coordination.simulated_journal import GROUP, NODE, JournalWorld


@pytest.fixture
def world() -> JournalWorld:
    world = JournalWorld(5)
    world.start()
    world.append(4)
    world.promise()
    world.snapshot()
    world.open.close()
    return world


def check(world: JournalWorld) -> GroupCheck:
    before = {name: bytes(content.data) for name, content in world.disk.files.items()}
    found = check_group(world.disk, GROUP.hex())
    assert before == {name: bytes(content.data) for name, content in world.disk.files.items()}
    return found


def content(world: JournalWorld, prefix: str) -> bytearray:
    (name,) = [name for name in world.disk.names() if name.startswith(prefix)]
    return world.disk.files[name].data


def end_of_journal(world: JournalWorld) -> int:
    """Return where the last entry ends, which is not followed by anything but zeros."""
    return len(content(world, "journal").rstrip(b"\0"))


def test_a_sound_group(world: JournalWorld) -> None:
    found = check(world)
    hint = world.open.root.hard_state.commit_hint
    assert found == GroupCheck(GROUP.hex(), NODE.hex(), 0, 1, 1, 4, hint, 1)
    assert found.is_sound


def test_what_the_next_start_does_by_itself_is_no_damage(world: JournalWorld) -> None:
    end = end_of_journal(world)
    content(world, "journal")[end : end + 4] = b"torn"
    content(world, "headers")[0] ^= 1
    content(world, "superblock")[COPY_BYTES] ^= 1
    world.disk.open("headers-99", create=True)
    found = check(world)
    assert (found.torn_bytes, found.healed, found.leftover_files) == (4, 2, 1)
    assert found.is_sound


def test_faulty_entries_are_counted(world: JournalWorld) -> None:
    content(world, "journal")[end_of_journal(world) - 1] ^= 1
    found = check(world)
    assert found.faulty == 1
    assert "1 entries cannot be read, the first is LSN 4: the next start fetches" in found.damage


def test_a_lost_snapshot_a_lost_log_and_a_lost_member(world: JournalWorld) -> None:
    content(world, "snapshot")[-1] ^= 1
    assert "snapshot 1 cannot be read" in check(world).damage
    content(world, "headers")[-1] ^= 1
    length = len(world.state.log[-1].body) + 128
    content(world, "journal")[-length] ^= 1
    assert "the log is lost" in check(world).damage
    content(world, "superblock")[0] ^= 1
    content(world, "superblock")[COPY_BYTES] ^= 1
    found = check(world)
    assert "never bring back an older copy" in found.damage
    assert not found.is_sound
    world.disk.remove("superblock")
    assert "there is no superblock" in check(world).damage


def test_files_of_another_group_and_of_a_newer_version_are_said_to_be(
    world: JournalWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "move them back" in check_group(world.disk, "ab" * 16).damage
    monkeypatch.setattr("millstream.vsr.core.entries._VERSION", 2)
    assert "newer one wrote it" in check(world).damage


def test_what_is_left_of_a_deleted_group_is_no_damage(world: JournalWorld) -> None:
    found = check_group(world.disk, GROUP.hex() + REMOVED)
    assert found.is_sound
    assert found.leftover_files == len(world.disk.names())


def known(phase: Phase | None, *tombstones: bytes) -> Known:
    return Known({} if phase is None else {GROUP: phase}, tombstones)


def test_what_a_start_finishes_or_removes_is_no_damage(world: JournalWorld) -> None:
    files = len(world.disk.names())
    assert check_group(world.disk, GROUP.hex(), known(Phase.OPEN)) == check(world)
    for folder, knows in (
        (GROUP.hex() + RESTORED, known(None)),
        (GROUP.hex() + RESTORED + REMOVED, known(None)),
        (GROUP.hex(), known(None, GROUP)),
    ):
        found = check_group(world.disk, folder, knows)
        assert (found.is_sound, found.leftover_files) == (True, files)
    restored = check_group(world.disk, GROUP.hex() + RESTORED, known(Phase.FORMED))
    assert restored.is_sound
    assert restored.last_lsn == 4
    world.disk.remove("superblock")
    unfinished = check_group(world.disk, GROUP.hex(), known(Phase.FORMATTING))
    assert unfinished.is_sound
    assert unfinished.is_unfinished
    assert "no superblock" in check_group(world.disk, GROUP.hex(), known(Phase.FORMED)).damage


def test_a_group_that_the_node_does_not_know_is_told(world: JournalWorld) -> None:
    damage = check_group(world.disk, GROUP.hex(), known(None)).damage
    assert "nothing opens it" in damage
    assert "Move the folder away" in damage
    assert "bring back" not in damage, "the pool file is there; an older one forgets promises"
