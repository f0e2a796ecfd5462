"""A group's state in a file, and a new group that begins with it.

The file is a snapshot's file (`vsr.core.disk.durable_steps`): whole or refused.

Invariants:
1. A restored group is another group: of another id, in an epoch of a later generation than all
   that the state has seen: versions go on growing, its log goes on where the snapshot was taken,
   and is another history from there on.
2. A crash while it is made leaves no group that anybody knows of.

Elsewhere: taking the snapshot (`vsr.core.replica.snapshot_taking`), the commands
(`pool.replica_commands`, `pool.group_commands`), reading and writing the file (the shell).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from millstream.coordination.core.namespace.machine import STATE_FORMAT
from millstream.errors import UsageError
from millstream.ports.disk import Disk
from millstream.vsr.core.configuration import Configuration, forked_epoch
from millstream.vsr.core.disk.durable_steps import decode_snapshot, encode_snapshot_head
from millstream.vsr.core.disk.journal import Journal, format_group
from millstream.vsr.core.hard_state import HardState
from millstream.vsr.core.replica.execution import epoch_in
from millstream.vsr.core.snapshots import Snapshot

__all__ = ["OF_ONE", "backup_parts", "format_restored", "read_backup"]

OF_ONE: Final = (
    "of one member alone: what others had committed behind that, or had not, it does not know"
)
"""What is said of a state that no quorum has agreed on."""


def backup_parts(snapshot: Snapshot, *, is_of_one: bool = False) -> Iterator[bytes]:
    """Yield the bytes of the file; `is_of_one`: it says that no quorum has agreed on the state."""
    yield encode_snapshot_head(snapshot, is_of_one=is_of_one)
    yield from snapshot.parts


def read_backup(content: bytes) -> Snapshot:
    """Return the state in a file.

    Raises:
        UsageError: `bad_backup`: it is none, or not whole.
    """
    snapshot = decode_snapshot(content)
    if snapshot is None:
        raise UsageError(
            "the file is no backup of a group, or not all of one: take another", code="bad_backup"
        )
    return snapshot


def format_restored(disk: Disk, hard_state: HardState, snapshot: Snapshot) -> None:
    """Format a new group of one whose state is that of a snapshot.

    Raises:
        UnavailableError: `disk_full`, `disk_failed`: it is not formatted.
        UsageError: `bad_backup`: there is no later epoch.
    """
    salt = int.from_bytes(hard_state.group_id[:2], "big")
    epoch, link = forked_epoch(epoch_in(snapshot, STATE_FORMAT), salt), snapshot.id.link
    if epoch is None:
        raise UsageError("the group in the file has forked too often", code="bad_backup")
    configuration = Configuration(
        epoch, hard_state.configuration.members, closed_lsn=link.lsn, closed_hash=link.hash
    )
    begun = hard_state._replace(last_normal=(epoch, 0), configuration=configuration)
    format_group(disk, hard_state)
    journal = Journal(disk)
    journal.write_snapshot(snapshot)
    journal.begin_anew(snapshot.id, (), begun)
    journal.close()
