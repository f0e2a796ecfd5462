"""The documents of a bucket as HTTP sees them: revision trees over the changes of keys.

Invariants:
1. A key that is valid UTF-8 and does not begin with `_` is a document, `_design/...` besides; what
   kv alone wrote has a tree, too, computed from its lineage.
2. Reading, deciding and writing one document is one step of the loop: nothing comes between. What
   was decided on another node is written only if nothing came between.
3. A document that has expired is gone before it is looked at.
4. A change names no bytes of attachments that are not on this disk, but those which the document
   named before.

Elsewhere: what a document is (`documents.stored`), what becomes of it (`documents.updating`), the
change of its key (`kv.core.partition.revision_changes`), waiting for the disk
(`kv.aio.documents.revision_store`).
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from millstream.documents.stored import Packed, StoredDocument, blobs_of, load, pack
from millstream.errors import UnavailableError, UsageError
from millstream.kv.core.copies.active import active_copy, not_now
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
    """A document as it is now."""

    document: StoredDocument
    partition: int
    seqno: int


class Version(NamedTuple):
    """Names one change of a document: no other one of its key has both numbers."""

    seqno: int
    cas: int


class Kept(NamedTuple):
    """A document as it is kept, not read yet."""

    partition: int
    frame: bytes
    side: bytes

    @property
    def version(self) -> Version:
        """Which change it is."""
        cas, seqno = _CAS_SEQNO(self.frame)
        return Version(seqno, cas)


class Made(NamedTuple):
    """What a decision led to."""

    document: StoredDocument | None
    """As it is now; None: there is none, or it was decided elsewhere."""
    partition: int
    seqno: int
    """Of the change; 0: nothing was changed."""


class RevisedDocuments:
    """The documents of one bucket, as far as their active copies are here.

    Every call may raise NotInMemory, having changed nothing.

    Args:
        bucket: whose documents they are.
    """

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    def kept(self, key: bytes, now_ns: int) -> Kept | None:
        """Return a document as it is kept, a deleted one too; None if there was never one.

        Raises:
            UnavailableError: `not_my_partition`, `temporarily_unavailable`.
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
        """Return a document that is kept so; raises CorruptionError: `bad_sidecar`."""
        document = load(self._bucket.uuid, key, kept.frame, kept.side, revs_limit)
        return Found(document, kept.partition, seqno_of(kept.frame))

    def update(
        self,
        key: bytes,
        decide: Callable[[StoredDocument | None], StoredDocument | None],
        now_ns: int,
        revs_limit: int,
    ) -> Made:
        """Change a document as is decided by how it is; raises as `read`, and what is decided.

        Raises:
            UnavailableError: `temporarily_unavailable`: memory or disk is full, or it is locked;
                `blob_missing`: an attachment was sent so long before that it is gone again.
            UsageError: `too_large`.
        """
        found = self.read(key, now_ns, revs_limit)
        before = None if found is None else found.document
        after = decide(before)
        if after is None:
            return Made(before, self._bucket.partition_for(key).partition_id, 0)
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
            packed: as the document is to be.
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
        if self._bucket.writes.refuses(partition.partition_id):
            raise not_now("writes are refused at the moment")
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
    """See that the attachments which a change names are here, and let them stay."""
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
