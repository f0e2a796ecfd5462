"""What a check of a group's files says to people.

Invariants:
1. Nothing is written. What the next start heals or cuts by itself is told and is no damage.

Elsewhere: reading the files (`recovery`), what a start does about it (`journal`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from millstream.coordination.core.durable import SUPERBLOCK
from millstream.coordination.core.recovery import Survey, survey
from millstream.errors import CorruptionError
from millstream.ports.disk import Disk

__all__ = ["GROUPS_FOLDER", "REMOVED", "GroupCheck", "check_group"]

GROUPS_FOLDER: Final = "coord"
"""Of a data directory: in it one folder for each group, named by its id in hex."""
REMOVED: Final = ".removed"
"""Behind the name of a deleted group's folder; the next start removes it."""


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
    damage: str = ""
    """Empty if all is well."""

    @property
    def is_sound(self) -> bool:
        """Whether no damage was found."""
        return not self.damage


def check_group(disk: Disk, folder: str) -> GroupCheck:
    """Read all files of a group; OSError if that is not possible at all."""
    found = GroupCheck(folder)
    if folder.endswith(REMOVED):
        found.leftover_files = len(disk.names())
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
    return found


def _fill(found: GroupCheck, surveyed: Survey) -> None:
    image, standing = surveyed.image, surveyed.image.standing
    if standing is None:
        return
    found.node_id, found.commit_hint = standing.node_id.hex(), standing.commit_hint
    found.epoch, found.view = standing.configuration.epoch, standing.view
    found.first_lsn, found.last_lsn = image.base.lsn + 1, image.op_lsn
    found.snapshot = image.snapshot_id.number if image.snapshot_id else 0
    found.faulty = sum(1 for _ in image.faulty())
    found.torn_bytes = surveyed.torn_bytes
    found.healed = len(surveyed.stale_copies) + len(surveyed.slots) + len(surveyed.heads)
    found.leftover_files = len(surveyed.leftovers)


def _damage(found: GroupCheck, surveyed: Survey) -> str:
    image, standing = surveyed.image, surveyed.image.standing
    if standing is None:
        return (
            "both copies of the superblock are damaged, and with them what this member has "
            "promised: replace it in its group by a new one, never bring back an older copy"
        )
    if standing.group_id.hex() != found.folder:
        return f"these are the files of group {standing.group_id.hex()}: move them back"
    if image.is_journal_lost:
        return "the log is lost: the next start recovers it from the other members"
    if found.faulty:
        first = next(image.faulty())
        return (
            f"{found.faulty} entries cannot be read, the first is LSN {first}: the next start "
            "fetches them from the other members"
        )
    if image.snapshot_id is not None and image.snapshot is None:
        return (
            f"snapshot {image.snapshot_id.number} cannot be read: the next start fetches it from "
            "another member"
        )
    return ""
