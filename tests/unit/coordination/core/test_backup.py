"""`coordination.core.backup`: a state in a file, and a group that begins with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.coordination.core.backup import (
    backup_parts,
    format_restored,
    read_backup,
)
from millstream.coordination.core.group_state import GroupState
from millstream.errors import CorruptionError, UsageError
from millstream.runtime.disk import OsDisk
from millstream.vsr.core.configuration import generation
from millstream.vsr.core.disk.journal import Journal
from millstream.vsr.core.effects import Start
from millstream.vsr.core.entries import Link
from millstream.vsr.core.hard_state import founded
from millstream.vsr.core.replica.replica import Replica
from millstream.vsr.core.snapshots import PART_BYTES, Snapshot, snapshot_of

ME = b"m" * 16
NEW = founded(b"n" * 16, ME, (ME,))


def fresh_state() -> bytes:
    return b"".join(Replica(GroupState(), lambda: 0.5).parts.execution.freeze())


def taken(data: bytes) -> Snapshot:
    return snapshot_of(3, Link(70, b"h" * 16, 1000), data)


def test_written_files_are_read_and_nothing_else() -> None:
    snapshot = taken(bytes(PART_BYTES + 5))
    content = b"".join(backup_parts(snapshot))
    assert read_backup(content) == snapshot
    for at in (0, 20, 60, 112, len(content) - 1):
        with pytest.raises(UsageError, match="no backup"):
            read_backup(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    with pytest.raises(UsageError, match="no backup"):
        read_backup(content[:-1])


def test_a_restored_group_begins_behind_the_snapshot_in_a_later_epoch(tmp_path: Path) -> None:
    snapshot = taken(fresh_state())
    format_restored(OsDisk(tmp_path), NEW, snapshot)
    journal = Journal(OsDisk(tmp_path))
    image = journal.image
    journal.close()
    assert image.hard_state is not None
    assert image.base == snapshot.id.link
    assert image.snapshot == snapshot
    configuration = image.hard_state.configuration
    assert generation(configuration.epoch) > generation(0)
    assert configuration.is_fork
    assert configuration.members == (ME,)
    assert (configuration.closed_lsn, configuration.closed_hash) == (70, b"h" * 16)
    replica = Replica(GroupState(), lambda: 0.5)
    replica.step(0, 0, Start(image.for_replica))
    assert replica.commit_lsn == 70


def test_a_state_of_another_version_founds_nothing(tmp_path: Path) -> None:
    with pytest.raises(CorruptionError, match="another version"):
        format_restored(OsDisk(tmp_path), NEW, taken(b"\xff" * 100))
    assert OsDisk(tmp_path).names() == []
