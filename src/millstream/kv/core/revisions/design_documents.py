"""The design documents of a bucket: ordinary documents with reserved keys.

    key: _design/NAME, in the partition that owns it
    value: a JSON object, without members whose name begins with `_`

They are streamed, persisted, copied and rolled back like all others.

Invariants:
1. A change names the revision that it replaces; otherwise it is refused as a conflict.
2. `known_keys` has every design document that a copy here has, and perhaps some that are gone:
   `Partition.design_keys` is initialized from the by-id map, and every new key is added to it.
3. Subscribers are called after a change of a design document became persisted, and after a copy
   that has one was rolled back; at most once per commit.

Elsewhere: waiting for documents and disk (`kv.aio.documents.design_documents`), the content of one
(`views.core.design.design_documents`), the pages (`gateway.aio.databases.design_pages`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from millstream.documents.stored import load
from millstream.errors import ConditionError, UsageError
from millstream.kv.core.copies.active import active_copy, check_writable, not_now
from millstream.kv.core.partition.partition import Partition
from millstream.kv.core.queue.entry import Entry
from millstream.model.limits import KEY_BYTES_MAX
from millstream.model.partitions import DESIGN_PREFIX
from millstream.model.revision import Revisions
from millstream.model.sides import has_sidecar, lineage_of
from millstream.wire.frames import change_of, seqno_of
from millstream.wire.mcbp import Datatype, Status

if TYPE_CHECKING:
    from millstream.kv.core.bucket import Bucket

__all__ = ["DesignDocuments", "StoredDesign", "design_key"]


class StoredDesign(NamedTuple):
    """A design document or its tombstone."""

    name: str
    """Without `_design/`."""
    rev: str
    body: bytes
    """A JSON object without `_id` and `_rev`; empty if it is deleted."""
    is_deleted: bool
    partition: int
    seqno: int
    is_persisted: bool


def design_key(name: str) -> bytes:
    """Return the key of a design document.

    Raises:
        UsageError: `illegal_docid`.
    """
    key = DESIGN_PREFIX + name.encode(errors="surrogatepass")
    try:
        key.decode()
    except UnicodeDecodeError as error:
        message = "the name of a design document must be text"
        raise UsageError(message, code="illegal_docid") from error
    if not name or len(key) > KEY_BYTES_MAX:
        raise UsageError(
            f"the name of a design document has 1 to {KEY_BYTES_MAX - len(DESIGN_PREFIX)} bytes",
            code="illegal_docid",
        )
    return key


class DesignDocuments:
    """The design documents of one bucket whose partitions have copies on this node.

    Methods that read a document raise NotInMemory if it has to be read from the disk first.
    """

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._subscribers: list[Callable[[], None]] = []
        self._seen: dict[bytes, bytes] = {}
        """By key: the newest persisted frame, if it was in memory."""
        self._epochs = [partition.epoch for partition in bucket.partitions]
        self._keys = set[bytes]().union(*(one.design_keys for one in bucket.partitions))
        for partition in bucket.partitions:
            partition.design_keys = self._keys
        bucket.subscribe_durable(self._look)

    def known_keys(self) -> list[bytes]:
        """Return the possible keys of design documents, sorted; from copies of any state."""
        return sorted(self._keys)

    def read(self, key: bytes) -> StoredDesign | None:
        """Return the document or its tombstone; None if there was never one.

        Raises:
            UnavailableError: `not_my_partition`, `temporarily_unavailable`.
        """
        return self._found(active_copy(self._bucket, key), key)

    def read_copy(self, key: bytes) -> StoredDesign | None:
        """As `read`, from a copy of any state."""
        return self._found(self._bucket.partition_for(key), key)

    def write(self, key: bytes, body: bytes | None, rev: str | None, now_ns: int) -> StoredDesign:
        """Replace the revision `rev` (None: there is no document) by a body; None deletes.

        Raises:
            ConditionError: `conflict`; `not_found`, there is nothing to delete.
            UnavailableError: `not_my_partition`, `temporarily_unavailable`, `isolated`.
        """
        partition = active_copy(self._bucket, key)
        check_writable(self._bucket, partition)
        present = self._found(partition, key)
        if present is None or present.is_deleted:
            if body is None:
                raise ConditionError("deleted" if present else "missing", code="not_found")
            if rev is not None and (present is None or rev != present.rev):
                raise _conflict()
        elif rev != present.rev:
            raise _conflict()
        if body is None:
            result = partition.delete(key, 0, now_ns)
        else:
            result = partition.put(key, body, 0, 0, 0, Datatype.JSON, now_ns)
        if isinstance(result, Status):
            raise not_now(f"it is refused: {result.name.lower()}")
        partition.design_keys.add(key)
        written = self._found(partition, key)
        assert written is not None
        return written

    # -- subscribers

    def subscribe(self, callback: Callable[[], None]) -> None:
        """Call `callback` after changes; it must only schedule work."""
        self._subscribers.append(callback)

    def unsubscribe(self, callback: Callable[[], None]) -> None:
        """Reverse `subscribe`; does nothing if there was no subscription."""
        if callback in self._subscribers:
            self._subscribers.remove(callback)

    def _look(self) -> None:
        """Check newly durable changes for design documents. Called after each commit."""
        is_other = False
        for key in self._keys:
            partition = self._bucket.partition_for(key)
            if partition.epoch != self._epochs[partition.partition_id]:
                self._epochs[partition.partition_id], is_other = partition.epoch, True
            entry = partition.table.get(key)
            if entry is None or entry.frame is self._seen.get(key):
                continue
            if seqno_of(entry.frame) <= partition.persisted_seqno:
                self._seen[key], is_other = entry.frame, True
        if is_other:
            for callback in tuple(self._subscribers):
                callback()

    # -- copies

    def _found(self, partition: Partition, key: bytes) -> StoredDesign | None:
        entry = partition.entry(key)
        return None if entry is None else _stored(self._bucket.uuid, partition, entry)


def _stored(bucket_uuid: str, partition: Partition, entry: Entry) -> StoredDesign:
    change = change_of(entry.frame)
    rev = Revisions(bucket_uuid).of(change.key, lineage_of(entry.side), change.rev)
    if has_sidecar(entry.side):
        rev = load(bucket_uuid, change.key, entry.frame, entry.side).winner.rev
    return StoredDesign(
        change.key[len(DESIGN_PREFIX) :].decode(errors="replace"),
        rev,
        b"" if change.is_deleted else change.value,
        change.is_deleted,
        partition.partition_id,
        change.seqno,
        change.seqno <= partition.persisted_seqno,
    )


def _conflict() -> ConditionError:
    return ConditionError("Document update conflict.", code="conflict")
