"""The report of a check of a node's own coordination files: its identity and its groups.

Invariants:
1. Nothing is written. What the next start repairs by itself is reported, and is not damage.

Elsewhere: the files (`node_file`, `pool_copies`), those of a group (`core.pool.group_check`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from millstream.coordination.aio.node_file import read_identity
from millstream.coordination.aio.pool_copies import read_pool_file
from millstream.coordination.core.pool.boot_stamps import starts
from millstream.coordination.core.pool.file_format import decode_node_file, lost_pool_file
from millstream.coordination.core.pool.group_check import Known
from millstream.errors import CorruptionError, UsageError

__all__ = ["NodeFilesCheck", "check_node_files"]


@dataclass(slots=True)
class NodeFilesCheck:
    """What was found of them."""

    node_id: str = ""
    incarnation: int = 0
    """How often it has started."""
    refusal: str = ""
    """Why other nodes refuse this one, and it takes part in nothing; empty: they do not."""
    groups: int = 0
    healed: int = 0
    """Files that the next start writes again from their copies."""
    damage: str = ""
    """Empty if all is well."""

    @property
    def is_sound(self) -> bool:
        """Whether no damage was found."""
        return not self.damage


@dataclass(slots=True)
class _Found:
    check: NodeFilesCheck = field(default_factory=NodeFilesCheck)
    known: Known | None = None


def check_node_files(directory: Path) -> tuple[NodeFilesCheck, Known | None]:
    """Return what was found, and what the node knows of its groups if that can be read."""
    found = _Found()
    try:
        _read(directory, found)
    except (CorruptionError, UsageError) as error:
        found.check.damage = str(error)
    except OSError as error:
        found.check.damage = f"it cannot be read: {error}"
    return found.check, found.known


def _read(directory: Path, found: _Found) -> None:
    content, others = read_pool_file(directory)
    if content is not None:
        kept = decode_node_file(content)
        phases = {one.group_id: one.phase for one in kept.hosted}
        found.known = Known(phases, frozenset(kept.tables.tombstones))
        found.check.groups = len(phases)
    elif any(one.is_dir() for one in directory.iterdir()):
        raise lost_pool_file("the node's pool file is gone, but there are groups beside it")
    identity, stale = read_identity(directory)
    found.check.healed = others + (stale if identity is not None else 0)
    if identity is None:
        return
    found.check.node_id = identity.node_id.hex()
    found.check.incarnation = starts(identity.incarnation)
    found.check.refusal = identity.refusal
    if content is not None and kept.node_id != identity.node_id:
        raise lost_pool_file("the node's pool file is of another node")
