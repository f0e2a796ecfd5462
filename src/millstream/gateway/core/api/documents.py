"""Interface of the node for the pages of documents.

Elsewhere: the implementation (`databases.documents.local_documents`,
`databases.documents.distributed_documents`), the form of a document (`documents.stored`),
decisions about changes (`documents.updating`).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from millstream.errors import MillstreamError

if TYPE_CHECKING:
    from millstream.documents.purge_list import Purged, PurgeList
    from millstream.documents.stored import StoredDocument

__all__ = [
    "Blob", "DatabaseInfo", "Decide", "DocumentApi", "LocalDocument", "OldDocuments", "Settings",
    "Written",
]  # fmt: skip

Decide = Callable[["StoredDocument | None"], "StoredDocument | None"]
"""Decides on a document: returns the new version; None: it stays. Raises `MillstreamError`: it is
refused."""


class Written(NamedTuple):
    """A change that was made, or `seqno` 0: no change was needed."""

    partition: int
    seqno: int
    document: StoredDocument | None
    """The document after it."""


class OldDocuments(NamedTuple):
    """What the log still has of old revisions of a document."""

    documents: list[tuple[StoredDocument, list[str]]]
    """The document as it was; and the wanted revisions of it, which `contents` or `replaced` has.
    """
    revs: list[str]
    """All revisions whose contents are there, if asked for."""


class Blob(NamedTuple):
    """Bytes of an attachment as stored."""

    sha256: bytes
    md5: bytes
    length: int


class LocalDocument(NamedTuple):
    """A document that is not replicated: mostly checkpoints of replicators."""

    id: str
    """Without `_local/`."""
    rev: int
    """Counts writes; shown as `0-N`."""
    body: bytes
    """A JSON object without `_id` and `_rev`."""


class DatabaseInfo(NamedTuple):
    """A database as `GET /DB` shows it."""

    name: str
    uuid: str
    partitions: int
    document_count: int
    deleted_count: int
    update_seq: str
    """A token for `since`."""
    purge_seq: int
    file_bytes: int
    active_bytes: int
    external_bytes: int
    compact_running: bool
    instance_start_time: str
    branches: tuple[int, ...] = ()
    """The newest branch of each partition's history; changes once writes may be lost."""
    purge_epoch: int = 0
    """Number of purges."""


class Settings(NamedTuple):
    """The settings of one database."""

    revs_limit: int
    security: bytes
    """A JSON object: `_security`."""
    uuid: str
    """Uuid of the database; a later one of the same name has another."""


class DocumentApi(Protocol):
    """The documents of a node's databases.

    Every call may raise `ConditionError` (`bucket_not_found`), `UsageError` (`illegal_docid`) and
    `UnavailableError` (`bucket_failed`; `not_my_partition`: the message names the node to ask;
    `temporarily_unavailable`; `disk_failed`, `disk_full`).
    """

    async def info(self, bucket: str) -> DatabaseInfo:
        """Return information about a database."""

    async def total(self, bucket: str) -> int | None:
        """Return the number of documents; the last count if counting now takes long.

        None: it is not known yet.
        """

    async def read(
        self, bucket: str, doc_id: str, *, is_durable: bool = False
    ) -> StoredDocument | None:
        """Return the current version of a document; None if there was never one.

        `is_durable`: wait until the returned version can no longer be lost.
        """

    async def old(
        self, bucket: str, doc_id: str, revs: Sequence[str], *, lists_all: bool
    ) -> OldDocuments:
        """Return the contents of replaced revisions, as far as they are still there.

        `lists_all`: also name all revisions that can be read.
        """

    def read_all(
        self, bucket: str, doc_ids: Sequence[str], *, is_durable: bool = False
    ) -> AsyncGenerator[StoredDocument | MillstreamError | None, None]:
        """Return documents in order, each as `read` does, or why it cannot be read.

        Faster than single reads if other nodes have them.
        """

    async def update(
        self, bucket: str, edits: Sequence[tuple[str, Decide]], *, is_durable: bool
    ) -> list[Written | MillstreamError]:
        """Change documents, each atomically; then wait for the disk once if requested.

        The results are in the order of the edits; a refusal concerns its own document only.
        `ambiguous`: the change may have been lost again.
        """

    async def commit(self, bucket: str) -> None:
        """Return once everything accepted before is durable."""

    async def compact(self, bucket: str) -> None:
        """Have all nodes compact their copies; replaced revisions are not read any more.

        A node that does not answer is left out.
        """

    async def put_blob(self, bucket: str, pieces: AsyncIterator[bytes]) -> Blob:
        """Store bytes durably, until a document names them."""

    def open_blob(self, bucket: str, sha256: bytes, begin: int, end: int) -> AsyncIterator[bytes]:
        """Return a range of such bytes in pieces.

        Raises:
            UnavailableError: `blob_missing`, this node does not have it.
        """

    async def read_local(self, bucket: str, doc_id: str) -> LocalDocument | None:
        """Return a document that is not replicated."""

    async def write_local(
        self, bucket: str, doc_id: str, body: bytes | None, rev: int | None
    ) -> int:
        """Replace (None: delete) one durably; return the number of its revision, 0 if deleted.

        Raises:
            ConditionError: `conflict`, `rev` is given and not the current one; `not_found`.
        """

    async def locals(self, bucket: str) -> list[LocalDocument]:
        """Return all local documents, by id."""

    async def settings(self, bucket: str) -> Settings:
        """Return the settings of a database."""

    async def set_revs_limit(self, bucket: str, limit: int) -> None:
        """Set the number of generations kept of each branch, from the next change on."""

    async def set_security(self, bucket: str, content: bytes) -> None:
        """Replace `_security`."""

    def keys(self, bucket: str, start: bytes, end: bytes) -> AsyncGenerator[bytes, None]:
        """Return all keys in [start, end] in byte order, including those that are no ids."""

    async def purges(self, bucket: str) -> PurgeList:
        """Return the latest purges on all nodes; those of one node are in their order."""

    async def note_purges(self, bucket: str, purged: Sequence[Purged]) -> None:
        """Add completed purges to the list durably."""

    async def set_purged_infos_limit(self, bucket: str, limit: int) -> None:
        """Set the number of purges that each node remembers."""

    def scan(
        self, bucket: str, start: bytes, end: bytes, *, descending: bool
    ) -> AsyncGenerator[tuple[str, StoredDocument], None]:
        """Return the documents with ids in [start, end], in the order of their bytes.

        Deleted ones are left out. Each is returned as it is when it is reached.
        """
