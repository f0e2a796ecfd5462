"""Requests between nodes that share a bucket, and the answers, in MessagePack.

A document goes from node to node as it is stored: frame and side. A node that changes one decides
on this stored version, and sends the new document with the version on which it was decided. The
owner writes it only if that version is still the newest.

Invariants:
1. A request names the bucket by its uuid, too: it does not apply to another one of the same name.
2. The error of one document is an answer among answers. The error of the whole request is a single
   `Refused`, and nothing was done.
3. Settings are joined: for each the one with the larger number counts, on whatever node it was
   set.

Elsewhere: requests for whole partitions (`gateway.core.bucket_parts`), the page
(`gateway.aio.peers.stored_pages`), the answering side (`databases.documents.local_node`), the
requesting side (`databases.remote_node`).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Final, NamedTuple, Protocol

import msgspec

from millstream.documents.purge_list import PurgeList
from millstream.errors import (
    MillstreamError,
    UnavailableError,
    UsageError,
    kind_named,
    name_of_kind,
)
from millstream.gateway.core.api.documents import Blob, LocalDocument
from millstream.gateway.core.bucket_parts import (
    Figures,
    Form,
    Histories,
    WantedChanges,
    WantedDocuments,
    WantedFigures,
    WantedHistories,
)
from millstream.kv.core.revisions.old_revisions import OldChanges
from millstream.kv.core.revisions.revision_store import Version

__all__ = [
    "CHANGES_MAX", "IDS_MAX", "PORTION_BYTES", "REQUEST_BYTES_MAX", "Answer", "AskPurges",
    "AskSettings", "Asked", "Change", "Changed", "Commit", "Compact", "CopyLocals", "CountPurge",
    "Done", "KeepLocal", "KeepSettings", "Lacking", "LimitPurges", "ListLocals", "LocalCopies",
    "LocalList", "LocalVersion", "Numbered", "OldList", "Placed", "Purges", "ReadLocal", "ReadOld",
    "ReadStored", "Refused", "SharedSettings", "Stored", "StoredApi", "StoredList", "Streamed",
    "WriteLocal", "WriteStored", "WrittenList", "decode_answer", "decode_asked", "encode",
    "error_of", "refused",
]  # fmt: skip

IDS_MAX: Final = 1000
"""Documents read by one request."""
CHANGES_MAX: Final = 1000
"""Documents changed by one request."""
PORTION_BYTES: Final = 8 * 1024 * 1024
"""No more documents are added to a request or an answer once it has this size."""
REQUEST_BYTES_MAX: Final = 64 * 1024 * 1024
"""A request: a batch, and one more document with the largest possible metadata."""


# -- documents


class ReadStored(Form, frozen=True):
    """Return documents: `StoredList`, of the first ones as many as fit, at least one."""

    uuid: str
    ids: list[str]
    is_durable: bool
    """Wait until the returned versions can no longer be lost."""
    bytes_max: int = PORTION_BYTES
    """No more documents are answered once the answer has this size."""


class Stored(Form, frozen=True):
    """A document as stored."""

    frame: bytes
    side: bytes


class Refused(Form, frozen=True):
    """Why something was not done."""

    kind: str
    """Class of the error."""
    code: str
    reason: str


class StoredList(Form, frozen=True):
    """In the order of the ids; None: there was never one."""

    documents: list[Stored | Refused | None]


class ReadOld(Form, frozen=True):
    """Return what the log still has of old revisions of a document: `OldList`."""

    uuid: str
    id: str
    revs: list[str]
    """Revisions whose contents are wanted."""
    lists_all: bool
    """Also list all revisions whose contents are there."""


class OldList(Form, frozen=True):
    """The changes that have wanted contents, newest first."""

    found: OldChanges


class Change(NamedTuple):
    """The new version of a document."""

    id: str
    version: Version | None
    """The version on which it was decided; None: there was none."""
    value: bytes | None
    sidecar: bytes


class WriteStored(Form, frozen=True):
    """Write documents that have not changed: `WrittenList`."""

    uuid: str
    changes: list[Change]
    is_durable: bool


class Placed(Form, frozen=True):
    """A change was made."""

    seqno: int


class Changed(Form, frozen=True):
    """Nothing was written: the document has changed."""


class Lacking(Form, frozen=True):
    """Nothing was written: bytes that the document newly names are not here."""

    blobs: list[bytes]


class WrittenList(Form, frozen=True):
    """In the order of the changes."""

    changes: list[Placed | Changed | Lacking | Refused]


# -- local documents


class ReadLocal(Form, frozen=True):
    """Return a local document: `LocalList` of one, or of none."""

    uuid: str
    id: str


class WriteLocal(Form, frozen=True):
    """Replace one; None: delete it; `rev` as `DocumentApi.write_local` has it: `Done`."""

    uuid: str
    id: str
    body: bytes | None
    rev: int | None


class LocalVersion(NamedTuple):
    """As `kv.aio.documents.local_store.Version`."""

    rev: int
    body: bytes
    stamp: str
    number: int


class KeepLocal(Form, frozen=True):
    """Store what a local document's owner wrote, for use after a change of owner: `Done`."""

    uuid: str
    id: str
    version: LocalVersion


class ListLocals(Form, frozen=True):
    """Return those whose partition is active there: `LocalList`, as many as fit."""

    uuid: str
    after: str
    """Only larger ids."""


class LocalList(Form, frozen=True):
    """By id."""

    documents: list[LocalDocument]
    is_last: bool = True


class CopyLocals(Form, frozen=True):
    """Return all that is stored there of some partitions: `LocalCopies`, as many as fit."""

    uuid: str
    partitions: list[int]
    after: str
    """Only larger ids."""


class LocalCopies(Form, frozen=True):
    """By id; the versions of each newest first."""

    copies: list[tuple[str, list[LocalVersion]]]
    is_last: bool = True


# -- settings of a database


class Numbered(NamedTuple):
    """A setting, and how often it was set."""

    number: int
    value: bytes


class SharedSettings(NamedTuple):
    """Settings that are the same on all nodes."""

    revs_limit: Numbered
    security: Numbered
    purges: int

    def joined(self, other: SharedSettings) -> SharedSettings:
        """Return the newer of each."""
        return SharedSettings(
            max(self.revs_limit, other.revs_limit),
            max(self.security, other.security),
            max(self.purges, other.purges),
        )


class AskSettings(Form, frozen=True):
    """Return the settings of that node: `KeepSettings`."""

    uuid: str


class KeepSettings(Form, frozen=True):
    """Store newer settings durably: `Done`."""

    uuid: str
    settings: SharedSettings


class AskPurges(Form, frozen=True):
    """Return the latest purges requested from that node: `Purges`."""

    uuid: str


class Purges(Form, frozen=True):
    """The purges of one node."""

    found: PurgeList


class LimitPurges(Form, frozen=True):
    """Set the number of purges remembered there: `Done`."""

    uuid: str
    limit: int


class Commit(Form, frozen=True):
    """Return once everything accepted there before is durable: `Done`."""

    uuid: str


class Compact(Form, frozen=True):
    """Compact that node's copies; what is replaced by now is not read any more: `Done`."""

    uuid: str


class CountPurge(Form, frozen=True):
    """Count durably a purge that is about to be made, or was made: `Done`."""

    uuid: str
    is_made: bool


class Done(Form, frozen=True):
    """It was done."""

    number: int = 0
    """Revision of a local document."""


Asked = (
    ReadStored
    | ReadOld
    | Compact
    | WriteStored
    | ReadLocal
    | WriteLocal
    | KeepLocal
    | ListLocals
    | CopyLocals
    | AskSettings
    | KeepSettings
    | AskPurges
    | LimitPurges
    | Commit
    | CountPurge
    | WantedHistories
    | WantedFigures
)
"""Answered by one message."""
Streamed = WantedChanges | WantedDocuments
"""Answered by a stream of messages."""
Answer = (
    StoredList
    | OldList
    | WrittenList
    | LocalList
    | LocalCopies
    | KeepSettings
    | Purges
    | Histories
    | Figures
    | Done
    | Refused
)

encode: Final = msgspec.msgpack.Encoder().encode
_asked: Final = msgspec.msgpack.Decoder(Asked | Streamed).decode
_answer: Final = msgspec.msgpack.Decoder(Answer).decode


def decode_asked(data: bytes) -> Asked | Streamed:
    """Decode a request.

    Raises:
        UsageError: it is invalid.
    """
    try:
        asked: Asked | Streamed = _asked(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"this is no request between nodes: {error}") from error
    if isinstance(asked, ReadStored) and not 1 <= len(asked.ids) <= IDS_MAX:
        raise UsageError(f"1 to {IDS_MAX} documents are asked for at a time")
    if isinstance(asked, WriteStored) and not 1 <= len(asked.changes) <= CHANGES_MAX:
        raise UsageError(f"1 to {CHANGES_MAX} documents are changed at a time")
    return asked


def decode_answer(data: bytes) -> Answer:
    """Decode an answer.

    Raises:
        msgspec.MsgspecError: it is invalid.
        UnicodeDecodeError: likewise.
    """
    answer: Answer = _answer(data)
    return answer


def refused(error: MillstreamError) -> Refused:
    """Encode an error."""
    return Refused(name_of_kind(error), error.code, str(error))


def error_of(refusal: Refused) -> MillstreamError:
    """Decode an error."""
    kind = kind_named(refusal.kind) or UnavailableError
    return kind(refusal.reason, code=refusal.code)


class StoredApi(Protocol):
    """This node's part of the buckets that it shares with others."""

    async def answer(self, bucket: str, asked: Asked) -> Answer:
        """Answer another node.

        Raises:
            MillstreamError: as `DocumentApi` does; nothing was done.
        """

    def stream(self, bucket: str, asked: Streamed) -> AsyncGenerator[bytes, None]:
        """Yield the messages of `gateway.core.bucket_parts` that answer another node.

        An error is the last message.
        """

    async def put_blob(self, bucket: str, pieces: AsyncIterator[bytes]) -> Blob:
        """Store bytes of an attachment durably."""

    def open_blob(
        self, bucket: str, sha256: bytes, begin: int, end: int
    ) -> AsyncGenerator[bytes, None]:
        """Return a range of bytes of an attachment; raises as `DocumentApi.open_blob`."""
