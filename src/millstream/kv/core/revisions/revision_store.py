"""The documents of a bucket as HTTP sees them: revision trees over the changes of keys.

Invariants:
1. A key that is valid UTF-8 and does not begin with `_` is a document; so is `_design/...`. A
   document written only by kv has a tree, too, computed from its lineage.
2. Reading, deciding and writing one document is one step of the loop, so it is atomic. A change
   decided on another node is written only if the document has not changed in between.
3. A document that is due is expired before it is read.
4. A change names only attachments whose bytes are on this disk, or that the document named before.

Elsewhere: the form of a document (`documents.stored`), decisions (`documents.updating`), the
change of its key (`kv.core.partition.revision_changes`), waiting for the disk
(`kv.aio.documents.revision_store`).
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from millstream.documents.stored import Packed, StoredDocument, blobs_of, load, pack
from millstream.documents.updating import carry
from millstream.errors import UnavailableError, UsageError
from millstream.kv.core.copies.active import active_copy, check_writable, not_now
from millstream.kv.core.partition.revision_changes import write_document
from millstream.model.limits import VALUE_BYTES_MAX
from millstream.model.sides import has_sidecar, sidecar_of
from millstream.wire.frames import seqno_of
from millstream.wire.mcbp import Status

if TYPE_CHECKING:
    from millstream.kv.core.bucket import Bucket
    from millstream.kv.core.partition.partition import Partition

__all__ = ["Found", "Kept", "Made", "RevisedDocuments", "Version"]

_CAS_SEQNO: Final = Struct(">16xQQ").unpack_from


class Found(NamedTuple):
    """The current version of a document."""

    document: StoredDocument
    partition: int
    seqno: int


class Version(NamedTuple):
    """Identifies one change of a document: no other change of its key has both numbers."""

    seqno: int
    cas: int


class Kept(NamedTuple):
    """A stored document, not parsed yet."""

    partition: int
    frame: bytes
    side: bytes

    @property
    def version(self) -> Version:
        """Return the version of the document."""
        cas, seqno = _CAS_SEQNO(self.frame)
        return Version(seqno, cas)


class Made(NamedTuple):
    """The result of a decision."""

    document: StoredDocument | None
    """The document after it; None: there is none, or it was decided elsewhere."""
    partition: int
    seqno: int
    """Seqno of the change; 0: nothing was changed."""


class RevisedDocuments:
    """The documents of one bucket whose active copies are on this node.

    Every call may raise NotInMemory without having changed anything.

    Args:
        bucket: whose documents they are.
    """

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    def kept(self, key: bytes, now_ns: int) -> Kept | None:
        """Return a document as it is stored, a deleted one too; None if there was never one.

        Raises:
            UnavailableError: `not_my_partition`, `temporarily_unavailable`, `isolated`.
        """
        partition = active_copy(self._bucket, key)
        partition.live(key, now_ns)
        entry = partition.entry(key)
        return None if entry is None else Kept(partition.partition_id, entry.frame, entry.side)

    def read(self, key: bytes, now_ns: int, revs_limit: int) -> Found | None:
        """Return a document; raises as `kept`, and CorruptionError: `bad_sidecar`."""
        kept = self.kept(key, now_ns)
        if kept is None:
            return None
        return self.load(key, kept, revs_limit)

    def load(self, key: bytes, kept: Kept, revs_limit: int) -> Found:
        """Parse a stored document; raises CorruptionError: `bad_sidecar`."""
        document = load(self._bucket.uuid, key, kept.frame, kept.side, revs_limit)
        return Found(document, kept.partition, seqno_of(kept.frame))

    def is_stored(self, key: bytes, seqno: int) -> bool:
        """Return whether a change of a key is in the log; if not, the next one supersedes it."""
        return seqno <= self._bucket.partition_for(key).persisted_seqno

    def update(
        self,
        key: bytes,
        decide: Callable[[StoredDocument | None], StoredDocument | None],
        now_ns: int,
        revs_limit: int,
    ) -> Made:
        """Change a document by a decision about it; raises as `read`, and as the decision.

        Raises:
            UnavailableError: `temporarily_unavailable`: memory or disk is full, or it is locked;
                `blob_missing`: an attachment was sent so long ago that it has been removed.
            UsageError: `too_large`.
        """
        found = self.read(key, now_ns, revs_limit)
        before = None if found is None else found.document
        after = decide(before)
        if after is None:
            return Made(before, self._bucket.partition_for(key).partition_id, 0)
        if before is not None and not self.is_stored(key, before.seqno):
            carry(after, before)
        return self._written(key, after, pack(after), now_ns)

    def replace(
        self,
        key: bytes,
        version: Version | None,
        packed: Packed,
        document: StoredDocument | None = None,
        *,
        now_ns: int,
    ) -> Made:
        """Write what was decided elsewhere, unless the document has changed: then seqno is 0.

        Args:
            key: of the document.
            version: on which it was decided; None: there was no document.
            packed: the new document.
            document: the same, if it is known here.
            now_ns: Unix time.

        Raises as `update` does.
        """
        kept = self.kept(key, now_ns)
        if (None if kept is None else kept.version) != version:
            return Made(None, self._bucket.partition_for(key).partition_id, 0)
        return self._written(key, document, packed, now_ns)

    def _written(
        self, key: bytes, document: StoredDocument | None, packed: Packed, now_ns: int
    ) -> Made:
        partition = self._bucket.partition_for(key)
        check_writable(self._bucket, partition)
        value, sidecar = packed
        if value is not None and len(value) > VALUE_BYTES_MAX:
            raise UsageError(
                f"a document has at most {VALUE_BYTES_MAX} bytes", code="document_too_large"
            )
        if document is None or any(one.attachments for one in document.contents.values()):
            _check_blobs(partition, key, sidecar)
        frame = write_document(partition, key, value, sidecar, now_ns)
        if isinstance(frame, Status):
            raise not_now(f"it is refused: {frame.name.lower()}")
        return Made(document, partition.partition_id, seqno_of(frame))


def _check_blobs(partition: Partition, key: bytes, sidecar: bytes) -> None:
    """Check that the attachments named by a change are here, and keep them."""
    names = blobs_of(sidecar)
    entry = partition.entry(key) if names else None
    if entry is not None and has_sidecar(entry.side):
        names -= blobs_of(sidecar_of(entry.side))
    missing = partition.blobs.missing(names) if names else []
    if missing:
        raise UnavailableError(
            f"the bytes {missing[0].hex()} of an attachment are not on this node any more; "
            "send the document with its attachments again",
            code="blob_missing",
        )
