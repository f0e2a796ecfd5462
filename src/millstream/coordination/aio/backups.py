"""Backup files of groups: written and read whole, in threads.

Invariants:
1. An existing file is never overwritten, nor one beside it. A file that has its final name is
   complete and durable.
2. Every failure is an answer, also a failing disk: it is not the disk of the node's groups, or the
   group that was being restored is not known to any node yet.

Elsewhere: the contents of the file (`core.backup`), who may ask for it (`core.resp`).
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

from millstream.coordination.aio.groups import Groups
from millstream.coordination.core.backup import (
    OF_ONE,
    backup_parts,
    format_restored,
    read_backup,
)
from millstream.coordination.core.pool.effects import Refusal
from millstream.errors import MillstreamError
from millstream.runtime.disk import OsDisk
from millstream.runtime.files import sync_directory
from millstream.runtime.tasks import in_thread
from millstream.vsr.core.disk.durable_steps import is_of_one
from millstream.vsr.core.hard_state import HardState
from millstream.vsr.core.snapshots import Snapshot

__all__ = ["RESTORED_BYTES_MAX", "Restored", "back_up", "restore"]

Restored = int | tuple[int, str]
RESTORED_BYTES_MAX: Final = 4 * 1024**3
"""Most bytes of a file that a group is restored from: its state has to fit into memory."""


async def back_up(snapshot: Snapshot, file: str, *, is_of_one: bool = False) -> int | Refusal:
    """Write a snapshot to a new file; return the LSN that it is of."""
    path = Path(file)
    if not path.is_absolute():
        return Refusal("BADARG", "the file needs an absolute path, on this node")
    try:
        await in_thread(_write, path, snapshot, is_of_one=is_of_one)
    except OSError as error:
        return _failed(path, error)
    return snapshot.id.lsn


def _write(path: Path, snapshot: Snapshot, *, is_of_one: bool) -> None:
    if os.path.lexists(path):
        raise FileExistsError(None, "the file exists already")
    descriptor, beside = tempfile.mkstemp(prefix=".millstream-backup-", dir=path.parent)
    try:
        with open(descriptor, "wb") as file:
            file.writelines(backup_parts(snapshot, is_of_one=is_of_one))
            file.flush()
            os.fsync(file.fileno())
        os.link(beside, path)  # unlike a change of its name, this fails if there is one
    finally:
        os.unlink(beside)
    sync_directory(path.parent)


async def restore(groups: Groups, hard_state: HardState, file: str) -> Restored | Refusal:
    """Make a group of the state in a file; return the LSN that it is of, and `OF_ONE` if so."""
    path = Path(file)
    if not path.is_absolute():
        return Refusal("BADARG", "the file needs an absolute path, on this node")
    try:
        return await in_thread(_restore, groups, hard_state, path)
    except OSError as error:
        return _failed(path, error)
    except MillstreamError as error:
        return Refusal("ERR", str(error))


def _restore(groups: Groups, hard_state: HardState, path: Path) -> Restored:
    if not path.is_file():
        raise OSError(None, "the file does not exist")
    with path.open("rb") as file:
        content = file.read(RESTORED_BYTES_MAX + 1)
    if len(content) > RESTORED_BYTES_MAX:
        raise OSError(None, f"it has more than {RESTORED_BYTES_MAX} bytes")
    snapshot = read_backup(content)
    path_made = groups.making(hard_state.group_id)
    try:
        format_restored(OsDisk(path_made), hard_state, snapshot)
    except (MillstreamError, OSError):
        shutil.rmtree(path_made, ignore_errors=True)  # or the next start does
        raise
    return (snapshot.id.lsn, OF_ONE) if is_of_one(content) else snapshot.id.lsn


def _failed(path: Path, error: OSError) -> Refusal:
    return Refusal("ERR", f"{path}: {error.strerror or error}")
