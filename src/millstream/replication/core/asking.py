"""What a run asks of the two databases, and what they answer.

Invariants:
1. A request names everything that its answer depends on; an answer is plain data.
2. Documents pass as the bytes that the source wrote; their attachments never pass here.
3. Errors are raised into who asked: `retry` of an error tells whether it is asked again.

Elsewhere: who asks (`starting`, `batches`, `checkpointing`, `running`), HTTP (`aio.peer`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple

from millstream.documents.tokens import Vector
from millstream.replication.core.coverage import Claim, Record
from millstream.replication.core.jobs import Job
from millstream.replication.core.places import Place

__all__ = [
    "OF_A_SIDE",
    "PASSING",
    "STUMBLED",
    "TOO_LARGE",
    "Ask",
    "Changes",
    "Copy",
    "Create",
    "Diff",
    "Difference",
    "Document",
    "Failure",
    "Feed",
    "Fetch",
    "Fetched",
    "Flush",
    "Info",
    "Page",
    "Pause",
    "ReadCode",
    "ReadInfo",
    "ReadLocal",
    "ReadRecords",
    "Request",
    "Row",
    "Side",
    "StoreRecords",
    "Verify",
    "Wanted",
    "Write",
    "WriteLocal",
    "feed_of",
]

Side = Literal["source", "target"]
PASSING: Final = frozenset((
    "ambiguous", "blob_missing", "bucket_failed", "busy", "design_differs", "disk_error",
    "disk_failed", "disk_full", "internal_error", "internal_server_error", "isolated",
    "majority_awaited", "majority_impossible", "majority_unknown", "node_failed",
    "not_my_partition", "rolled_back", "service_unavailable", "stopping",
    "temporarily_unavailable", "timeout", "unavailable", "unreachable",
))  # fmt: skip
"""Codes that an answer has for a single document which may go well later."""
STUMBLED: Final = frozenset(("blob_missing", "internal_server_error", "internal_error"))
"""Codes that pass, or are those of a document for good: whether others are taken tells."""
OF_A_SIDE: Final = PASSING - STUMBLED - {"unavailable", "unreachable"} | {"unauthorized"}
"""Codes of a whole request that are never one document's fault."""
TOO_LARGE: Final = "too_large"
"""The code of an error that asks for smaller requests, whichever side they go to."""


class Info(NamedTuple):
    """A database as it says it is."""

    uuid: str = ""
    """Empty of one that tells no vectors, as CouchDB."""
    identity: str = ""
    """What it calls itself instead of a uuid."""
    ancestors: tuple[str, ...] = ()
    end: Vector | None = None
    """Up to where it is durable."""
    branches: tuple[int, ...] = ()
    purge_epoch: int = 0
    instance_start_time: str = "0"
    update_seq: Any = 0

    @property
    def incarnation(self) -> tuple[Any, ...]:
        """What is another one once writes may be lost, or the database is another one."""
        return self.uuid, self.branches, self.instance_start_time


class Feed(NamedTuple):
    """Which changes are wanted."""

    style: Literal["all_docs", "main_only"] = "all_docs"
    doc_ids: tuple[str, ...] | None = None
    selector: Mapping[str, Any] | None = None
    filter: str = ""
    query_params: Mapping[str, Any] = {}


def feed_of(job: Job) -> Feed:
    """Return the changes that a job is about."""
    style: Literal["all_docs", "main_only"] = "main_only" if job.winning_revs_only else "all_docs"
    return Feed(style, job.doc_ids, job.selector, job.filter, job.query_params)


class Row(NamedTuple):
    """A document that changed, with its leaves that are wanted."""

    name: str
    revs: tuple[str, ...]
    reason: str = ""
    """Why there may be leaves that it does not name; empty: it names all."""


class Page(NamedTuple):
    """Some changes, and where their reader stands behind them."""

    rows: tuple[Row, ...]
    place: Place
    pending: int | None = None
    """Rows behind them, if the source tells."""
    is_complete: bool = True
    """Whether no deletion can have been forgotten where the request began."""
    records: tuple[Record, ...] = ()


class Difference(NamedTuple):
    """What a target lacks of a document."""

    missing: tuple[str, ...]
    possible_ancestors: tuple[str, ...] = ()


class Wanted(NamedTuple):
    """Revisions of a document that are to be fetched."""

    name: str
    revs: tuple[str, ...]
    known: tuple[str, ...] = ()
    """Revisions that the target has: their attachments are not sent again."""


class Document(NamedTuple):
    """One revision with its ancestors, as JSON text."""

    name: str
    rev: str
    body: bytes
    has_attachments: bool = False


class Fetched(NamedTuple):
    """Documents, and (id, revision) of what the source does not have."""

    documents: tuple[Document, ...]
    missing: tuple[tuple[str, str], ...] = ()


class Failure(NamedTuple):
    """A document that the target did not take."""

    name: str
    rev: str
    error: str
    reason: str = ""


# ---- requests; behind each what answers it


class ReadInfo(NamedTuple):
    """-> Info; ConditionError `not_found`: there is no such database."""


class Create(NamedTuple):
    """-> None, also if the database exists."""

    params: Mapping[str, Any] = {}


class ReadLocal(NamedTuple):
    """-> the body with `_rev`, or None."""

    name: str


class WriteLocal(NamedTuple):
    """-> None; ConditionError `conflict`: it is another one by now."""

    name: str
    body: Mapping[str, Any]


class ReadCode(NamedTuple):
    """-> text; ConditionError: the design document has nothing there."""

    path: tuple[str, ...]


class ReadRecords(NamedTuple):
    """-> valid records about any of these databases."""

    origins: tuple[str, ...]


class Verify(NamedTuple):
    """-> for each claim the effective vector, or None."""

    claims: tuple[Claim, ...]


class StoreRecords(NamedTuple):
    """-> None; records whose stamp does not hold are passed over."""

    records: tuple[Record, ...] = ()
    removed: tuple[str, ...] = ()


class Changes(NamedTuple):
    """-> Page."""

    since: Any
    limit: int
    feed: Feed
    wait_ms: int = 0
    """How long to wait for a first change."""
    puller: str = ""
    """Uuid of the target: records are wanted, too."""
    takes_parts: bool = False
    """Also parts of records, in the middle of a snapshot."""


class Diff(NamedTuple):
    """-> by id what is missing; ids of which nothing is are left out."""

    revs: Mapping[str, tuple[str, ...]]


class Fetch(NamedTuple):
    """-> Fetched; newest leaves below what is wanted."""

    wanted: tuple[Wanted, ...]


class Write(NamedTuple):
    """-> tuple of Failure."""

    documents: tuple[Document, ...]


class Copy(NamedTuple):
    """-> tuple of Failure; (id, revision) of what the source lacks have the error `missing`.

    Asked of the source: documents with attachments go to the target without being kept.
    """

    wanted: Wanted


class Flush(NamedTuple):
    """-> Info once all that was acknowledged before is durable."""


Request = (
    ReadInfo | Create | ReadLocal | WriteLocal | ReadCode | ReadRecords | Verify | StoreRecords
    | Changes | Diff | Fetch | Write | Copy | Flush
)  # fmt: skip


class Ask(NamedTuple):
    """A task waits for a database."""

    side: Side
    request: Request


class Pause(NamedTuple):
    """A task waits for a time."""

    wait_ms: float
