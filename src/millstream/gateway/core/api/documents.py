"""What the pages of documents need of the node around them.

Elsewhere: the node that has this shape (`node.documents`), what a document is
(`documents.stored`), what a change does to it (`documents.updating`).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from millstream.errors import MillstreamError

if TYPE_CHECKING:
    from millstream.documents.purge_list import Purged, PurgeList
    from millstream.documents.stored import StoredDocument

__all__ = [
    "Blob", "DatabaseInfo", "Decide", "DocumentHost", "LocalDocument", "Settings", "Written",
]  # fmt: skip

Decide = Callable[["StoredDocument | None"], "StoredDocument | None"]
"""What becomes of a document: None: it stays as it is. Raises `MillstreamError`: it is refused."""


class Written(NamedTuple):
    """A change that was made, or None was wanted: `seqno` 0."""

    partition: int
    seqno: int
    document: StoredDocument | None
    """As it is now."""


class Blob(NamedTuple):
    """Bytes of an attachment as they are stored."""

    sha256: bytes
    md5: bytes
    length: int


class LocalDocument(NamedTuple):
    """A document that stays in its database: checkpoints of replicators, mostly."""

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
    """A token that `since` takes."""
    purge_seq: int
    file_bytes: int
    active_bytes: int
    external_bytes: int
    compact_running: bool
    instance_start_time: str
    branches: tuple[int, ...] = ()
    """The newest branch of each partition's history: another one once writes may be lost."""
    purge_epoch: int = 0
    """How often documents were purged."""


class Settings(NamedTuple):
    """What is set for one database."""

    revs_limit: int
    security: bytes
    """A JSON object: `_security`."""
    uuid: str
    """Of the database: another one of its name has another."""


class DocumentHost(Protocol):
    """The documents of a node's databases.

    Every call may raise `ConditionError` (`bucket_not_found`), `UsageError` (`illegal_docid`) and
    `UnavailableError` (`bucket_failed`; `not_my_partition`: the message names the node to ask;
    `temporarily_unavailable`; `disk_failed`, `disk_full`).
    """

    async def info(self, bucket: str) -> DatabaseInfo:
        """Return what is known of a database."""

    async def total(self, bucket: str) -> int | None:
        """Return how many documents there are, as counted last if counting now takes long.

        None: that is not known yet.
        """

    async def read(
        self, bucket: str, doc_id: str, *, is_durable: bool = False
    ) -> StoredDocument | None:
        """Return a document as it is now; None if there was never one.

        `is_durable`: wait until what is returned cannot get lost any more.
        """

    def read_all(
        self, bucket: str, doc_ids: Sequence[str], *, is_durable: bool = False
    ) -> AsyncGenerator[StoredDocument | MillstreamError | None, None]:
        """Return documents in order, each as `read` does, or why it cannot be read.

        Quicker than asking for each where other nodes have them.
        """

    async def update(
        self, bucket: str, edits: Sequence[tuple[str, Decide]], *, is_durable: bool
    ) -> list[Written | MillstreamError]:
        """Change documents, each in one step; then wait for the disk once if it is wanted.

        The answers are in the order of the edits; a refusal concerns its own document alone.
        `ambiguous` among them: the change may have got lost again.
        """

    async def commit(self, bucket: str) -> None:
        """Return once all that was accepted before is durable."""

    async def put_blob(self, bucket: str, pieces: AsyncIterator[bytes]) -> Blob:
        """Keep bytes, durably, until a document names them."""

    def open_blob(self, bucket: str, sha256: bytes, begin: int, end: int) -> AsyncIterator[bytes]:
        """Return a range of such bytes in pieces.

        Raises:
            UnavailableError: `blob_missing`, this node has not got it.
        """

    async def read_local(self, bucket: str, doc_id: str) -> LocalDocument | None:
        """Return a document that is not replicated."""

    async def write_local(
        self, bucket: str, doc_id: str, body: bytes | None, rev: int | None
    ) -> int:
        """Replace (None: delete) one, durably; return its revision's number, 0 where deleted.

        Raises:
            ConditionError: `conflict`, `rev` is given and not the present one; `not_found`.
        """

    async def locals(self, bucket: str) -> list[LocalDocument]:
        """Return all of them, by id."""

    async def settings(self, bucket: str) -> Settings:
        """Return what is set for a database."""

    async def set_revs_limit(self, bucket: str, limit: int) -> None:
        """Keep so many generations of each branch from the next change on."""

    async def set_security(self, bucket: str, content: bytes) -> None:
        """Replace `_security`."""

    def keys(self, bucket: str, start: bytes, end: bytes) -> AsyncGenerator[bytes, None]:
        """Return all keys in [start, end], those that are no ids too, in the order of bytes."""

    async def purges(self, bucket: str) -> PurgeList:
        """Return the latest purges, on all nodes; those of one node are in their order."""

    async def note_purges(self, bucket: str, purged: Sequence[Purged]) -> None:
        """Add purges that were made to the list, durably."""

    async def set_purged_infos_limit(self, bucket: str, limit: int) -> None:
        """Remember so many purges on each node."""

    def scan(
        self, bucket: str, start: bytes, end: bytes, *, descending: bool
    ) -> AsyncGenerator[tuple[str, StoredDocument], None]:
        """Return the documents with ids in [start, end], in the order of their bytes.

        Deleted ones are left out; each is as it is when it is reached.
        """
