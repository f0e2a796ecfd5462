"""Contents of replaced revisions, as the changes of a document in the log still have them.

A change of a key names the change that it replaced. So from the newest change of a document its
older ones are found one by one, and each has the contents of what were leaves then.

Invariants:
1. A content is found only in a live change: none that a rollback killed.
2. What a purge took is not found: nothing older than a purge is looked at.
3. What was replaced at or below a limit is not found: a compaction may remove it, or removed it.
4. At most `OLD_CHANGES_MAX` changes are looked at, and no more once they have `OLD_BYTES_MAX`.

Elsewhere: the changes of a key (`storage.core.live`), where the limit comes from
(`kv.aio.documents.old_revisions`), what of it is shown (`gateway.aio.documents.old_contents`).
Source: CouchDB, which keeps the bodies of old revisions until the next compaction.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

from millstream.documents.stored import load
from millstream.model.position import FailoverLog
from millstream.model.sides import side_of
from millstream.storage.core.records import StoredChange
from millstream.wire.frames import seqno_of

__all__ = [
    "OLD_BYTES_MAX", "OLD_CHANGES_MAX", "Compacted", "OldChange", "OldChanges", "find_old",
]  # fmt: skip

OLD_CHANGES_MAX: Final = 1000
"""Changes of a document among which an old revision is searched, newest first."""
OLD_BYTES_MAX: Final = 64 * 1024 * 1024
"""No older change is read in such a search once those read have this size."""


class Compacted(NamedTuple):
    """Up to where a partition was when its bucket was last compacted on request."""

    branch: int
    seqno: int

    def limit(self, failover_log: FailoverLog) -> int:
        """Return the newest seqno that is still one of those; later branches gave some anew."""
        later = (entry.seqno for entry in failover_log if entry.branch > self.branch)
        return min((self.seqno, *later))


class OldChange(NamedTuple):
    """A change of a document."""

    frame: bytes
    side: bytes
    revs: list[str]
    """Wanted revisions that it has the contents of."""


class OldChanges(NamedTuple):
    """What was found."""

    changes: list[OldChange]
    revs: list[str]
    """All revisions whose contents were found, if they were asked for."""


def find_old(
    bucket_uuid: str,
    key: bytes,
    changes: Iterable[StoredChange],
    wanted: Collection[str],
    limit: int,
    *,
    lists_all: bool,
) -> OldChanges:
    """Find the contents of revisions of a document.

    Args:
        bucket_uuid: of the bucket.
        key: of the document.
        changes: newest first; not read further than needed.
        wanted: revisions.
        limit: what changes up to this seqno replaced is not found.
        lists_all: also list all revisions whose contents are there.

    Raises:
        CorruptionError: `bad_sidecar`.
    """
    left, found, listed, size = set(wanted), OldChanges([], []), dict[str, None](), 0
    for count, change in enumerate(changes, 1):
        frame, side = change.frame, side_of(change.lineage, change.sidecar)
        document = load(bucket_uuid, key, frame, side, revs_limit=1)
        is_compacted = seqno_of(frame) <= limit
        is_last = document.is_purged or is_compacted
        revs = [*document.known_revs, *(() if is_compacted else document.replaced)]
        if lists_all:
            listed.update(dict.fromkeys(revs))
        if has := [rev for rev in revs if rev in left]:
            found.changes.append(OldChange(frame, side, has))
            left.difference_update(has)
        size += len(frame) + len(side)
        is_enough = not left and not lists_all
        if is_last or is_enough or count == OLD_CHANGES_MAX or size >= OLD_BYTES_MAX:
            break
    found.revs.extend(listed)
    return found
