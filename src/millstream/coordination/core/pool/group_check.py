"""The report of a check of a group's files.

Invariants:
1. Nothing is written. What the next start repairs, cuts, finishes or removes by itself is
   reported, and is not damage.

Elsewhere: reading the files (`vsr.core.disk.startup`), what a start does
(`vsr.core.disk.journal`).
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from millstream.coordination.core.pool.file_format import Phase
from millstream.errors import CorruptionError
from millstream.ports.disk import Disk
from millstream.vsr.core.disk.durable_steps import SUPERBLOCK
from millstream.vsr.core.disk.journal import older_than
from millstream.vsr.core.disk.reached_file import ReachedFile
from millstream.vsr.core.disk.startup import Survey, survey

__all__ = ["GROUPS_FOLDER", "REACHED", "REMOVED", "RESTORED", "GroupCheck", "Known", "check_group"]

GROUPS_FOLDER: Final = "coord"
"""Folder of a data directory. It has one folder for each group, named by its id in hex."""
REACHED: Final = ".reached"
"""Behind the name of that folder: where it stands how far each group had got."""
REMOVED: Final = ".removed"
"""Behind the name of a deleted group's folder; the next start removes it."""


RESTORED: Final = ".restored"
"""Behind the name of a folder that a restored group is made in. It is the group's once the node's
pool file has the group; one that it does not have was never in force, and the next start removes
it."""


class Known(NamedTuple):
    """What the node's pool file says of groups: those that it has, and those that were deleted."""

    phases: Mapping[bytes, Phase]
    tombstones: Container[bytes]


@dataclass(slots=True)
class GroupCheck:
    """What was found of one group's member."""

    folder: str
    node_id: str = ""
    epoch: int = 0
    view: int = 0
    first_lsn: int = 0
    last_lsn: int = 0
    """Below `first_lsn` if the log is empty."""
    commit_hint: int = 0
    snapshot: int = 0
    """Number of the stable one; 0: there is none."""
    faulty: int = 0
    """Entries that cannot be read and may have been acknowledged."""
    torn_bytes: int = 0
    """Behind the last entry; the next start cuts them. Nothing acknowledged is in them."""
    healed: int = 0
    """Headers and copies of the superblock that the next start writes again from their twins."""
    leftover_files: int = 0
    """What a crash left; the next start removes them."""
    is_unfinished: bool = False
    """Whether it was being founded. The next start goes on with that."""
    damage: str = ""
    """Empty if all is well."""

    @property
    def is_sound(self) -> bool:
        """Whether no damage was found."""
        return not self.damage


def check_group(
    disk: Disk, folder: str, known: Known | None = None, reached: Disk | None = None
) -> GroupCheck:
    """Read all files of a group; OSError if that is not possible at all.

    `known`: None: what the node knows cannot be read. `reached`: where it stands how far groups
    had got.
    """
    found, group_id = GroupCheck(folder), bytes.fromhex(folder.partition(".")[0])
    if _goes_at_the_next_start(folder, group_id, known):
        found.leftover_files = len(disk.names())
        return found
    phase = None if known is None else known.phases.get(group_id)
    if phase is Phase.FORMATTING:
        found.is_unfinished = True
        return found
    if known is not None and phase is None:
        found.damage = (
            "the node's pool file does not know this group, so nothing opens it: it was brought "
            "here, or the pool file is an older one. Move the folder away; if ADMIN STATUS of the "
            "group names this node as a member, ADMIN GROUP REPLACE it by a new one"
        )
        return found
    if SUPERBLOCK not in disk.names():
        found.damage = "there is no superblock: this member was never made, or has to be replaced"
        return found
    try:
        surveyed = survey(disk)
    except CorruptionError as error:
        found.damage = str(error)
        return found
    _fill(found, surveyed)
    found.damage = _damage(found, surveyed)
    if surveyed.root is not None and reached is not None:
        hard_state = surveyed.root.hard_state
        point = ReachedFile(reached, hard_state.node_id, hard_state.group_id).found()
        found.damage = found.damage or older_than(disk, surveyed, point)
    return found


def _goes_at_the_next_start(folder: str, group_id: bytes, known: Known | None) -> bool:
    if folder.endswith(REMOVED) or known is None:
        return folder.endswith(REMOVED)
    is_new = folder.endswith(RESTORED) and group_id not in known.phases
    return is_new or group_id in known.tombstones


def _fill(found: GroupCheck, surveyed: Survey) -> None:
    image, hard_state = surveyed.image, surveyed.image.hard_state
    if hard_state is None:
        return
    found.node_id, found.commit_hint = hard_state.node_id.hex(), hard_state.commit_hint
    found.epoch, found.view = hard_state.configuration.epoch, hard_state.view
    found.first_lsn, found.last_lsn = image.base.lsn + 1, image.op_lsn
    found.snapshot = image.snapshot_id.number if image.snapshot_id else 0
    found.faulty = sum(1 for _ in image.faulty())
    found.torn_bytes = surveyed.torn_bytes
    found.healed = len(surveyed.stale_copies) + len(surveyed.slots) + len(surveyed.heads)
    found.leftover_files = len(surveyed.leftovers)


def _damage(found: GroupCheck, surveyed: Survey) -> str:
    image, hard_state = surveyed.image, surveyed.image.hard_state
    if hard_state is None:
        return (
            "both copies of the superblock are damaged, and with them what this member has "
            "promised: replace it in its group by a new one, never bring back an older copy"
        )
    if hard_state.group_id.hex() != found.folder.removesuffix(RESTORED):
        return f"these are the files of group {hard_state.group_id.hex()}: move them back"
    if image.is_journal_lost:
        return "the log is lost: the next start recovers it from the other members"
    if found.faulty:
        first = next(image.faulty())
        return (
            f"{found.faulty} entries cannot be read, the first is LSN {first}: the next start "
            "fetches them from the other members; for a group of one member restore a backup"
        )
    if image.snapshot_id is not None and image.snapshot is None:
        return (
            f"snapshot {image.snapshot_id.number} cannot be read: the next start fetches it from "
            "another member"
        )
    return ""
