"""What nodes that share a bucket ask each other of documents: requests, answers, in MessagePack.

A document goes from node to node as it is kept: frame and side. Who wants to change one decides
with that, and sends what it is to be and the version that it was decided on; it is written where
that is still the newest.

Invariants:
1. A request names the bucket by its uuid, too: another one of the same name is not meant.
2. What concerns one document of several is an answer among answers; what concerns the whole
   request is a `Refused` alone. Nothing was done then.
3. Settings are joined: of each the one with the larger number counts, on whatever node it was set.

Elsewhere: the page (`gateway.aio.peers.stored_pages`), who answers
(`databases.documents.peer_requests`), who asks (`databases.documents.remote_nodes`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final, NamedTuple, Protocol

import msgspec

from millstream.documents.purge_list import PurgeList
from millstream.errors import (
    AccessError,
    ConditionError,
    CorruptionError,
    MillstreamError,
    OutcomeUnknownError,
    RoutingError,
    UnavailableError,
    UsageError,
)
from millstream.gateway.core.api.documents import Blob, LocalDocument
from millstream.kv.core.revisions.revision_store import Version

__all__ = [
    "CHANGES_MAX", "IDS_MAX", "PORTION_BYTES", "REQUEST_BYTES_MAX", "Answer", "AskPurges",
    "AskSettings", "Asked", "Change", "Changed", "Commit", "Done", "KeepLocal", "KeepSettings",
    "Lacking", "LimitPurges", "ListLocals", "LocalList", "LocalVersion", "Numbered", "Placed",
    "Purges", "ReadLocal", "ReadStored", "Refused", "SharedSettings", "Stored", "StoredHost",
    "StoredList", "WriteLocal", "WriteStored", "WrittenList", "decode_answer", "decode_asked",
    "encode", "error_of", "refused",
]  # fmt: skip

IDS_MAX: Final = 1000
"""Documents that one request asks for."""
CHANGES_MAX: Final = 1000
"""Documents that one request changes."""
PORTION_BYTES: Final = 8 * 1024 * 1024
"""A request or an answer has no more documents once they have so many bytes."""
REQUEST_BYTES_MAX: Final = 64 * 1024 * 1024
"""Of a request: a portion, and one document more, with all that may be beside it."""


class _Form(msgspec.Struct, array_like=True, frozen=True, gc=False, tag=True):
    """Told apart by the name in front."""


# -- documents


class ReadStored(_Form, frozen=True):
    """Return documents: `StoredList`, of the first ones as many as fit, at least one."""

    uuid: str
    ids: list[str]
    is_durable: bool
    """Wait until what is returned cannot get lost any more."""


class Stored(_Form, frozen=True):
    """A document as it is kept."""

    frame: bytes
    side: bytes


class Refused(_Form, frozen=True):
    """Why something was not done."""

    kind: str
    """Class of the error."""
    code: str
    reason: str


class StoredList(_Form, frozen=True):
    """In the order of the ids; None: there was never one."""

    documents: list[Stored | Refused | None]


class Change(NamedTuple):
    """What a document is to be."""

    id: str
    version: Version | None
    """On which that was decided; None: there was none."""
    value: bytes | None
    sidecar: bytes


class WriteStored(_Form, frozen=True):
    """Write documents that have not changed: `WrittenList`."""

    uuid: str
    changes: list[Change]
    is_durable: bool


class Placed(_Form, frozen=True):
    """A change was made."""

    seqno: int


class Changed(_Form, frozen=True):
    """Nothing was written: the document is another one by now."""


class Lacking(_Form, frozen=True):
    """Nothing was written: bytes that the document names for the first time are not here."""

    blobs: list[bytes]


class WrittenList(_Form, frozen=True):
    """In the order of the changes."""

    changes: list[Placed | Changed | Lacking | Refused]


# -- local documents


class ReadLocal(_Form, frozen=True):
    """Return a local document: `LocalList` of one, or of none."""

    uuid: str
    id: str


class WriteLocal(_Form, frozen=True):
    """Replace one; None: delete it; `rev` as `DocumentHost.write_local` has it: `Done`."""

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


class KeepLocal(_Form, frozen=True):
    """Keep what the owner of a local document wrote, for the time when it is not owner: `Done`."""

    uuid: str
    id: str
    version: LocalVersion


class ListLocals(_Form, frozen=True):
    """Return those whose partition is active there: `LocalList`, as many as fit."""

    uuid: str
    after: str
    """Only larger ids."""


class LocalList(_Form, frozen=True):
    """By id."""

    documents: list[LocalDocument]
    is_last: bool = True


# -- what is set for a database


class Numbered(NamedTuple):
    """A setting, and how often it was set."""

    number: int
    value: bytes


class SharedSettings(NamedTuple):
    """What is to be the same on all nodes."""

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


class AskSettings(_Form, frozen=True):
    """Return what is known there: `KeepSettings`."""

    uuid: str


class KeepSettings(_Form, frozen=True):
    """Take over, durably, what is newer: `Done`."""

    uuid: str
    settings: SharedSettings


class AskPurges(_Form, frozen=True):
    """Return the latest purges that were asked of that node: `Purges`."""

    uuid: str


class Purges(_Form, frozen=True):
    """Of one node."""

    found: PurgeList


class LimitPurges(_Form, frozen=True):
    """Remember so many purges there: `Done`."""

    uuid: str
    limit: int


class Commit(_Form, frozen=True):
    """Return once all that was accepted there before is durable: `Done`."""

    uuid: str


class Done(_Form, frozen=True):
    """It was done."""

    number: int = 0
    """Revision of a local document."""


Asked = (
    ReadStored
    | WriteStored
    | ReadLocal
    | WriteLocal
    | KeepLocal
    | ListLocals
    | AskSettings
    | KeepSettings
    | AskPurges
    | LimitPurges
    | Commit
)
Answer = StoredList | WrittenList | LocalList | KeepSettings | Purges | Done | Refused

encode: Final = msgspec.msgpack.Encoder().encode
_asked: Final = msgspec.msgpack.Decoder(Asked).decode
_answer: Final = msgspec.msgpack.Decoder(Answer).decode
_KINDS: Final = {
    kind.__name__: kind
    for kind in (
        AccessError, ConditionError, CorruptionError, MillstreamError, OutcomeUnknownError,
        RoutingError, UnavailableError, UsageError,
    )
}  # fmt: skip


def decode_asked(data: bytes) -> Asked:
    """Return a request.

    Raises:
        UsageError: it is none.
    """
    try:
        asked: Asked = _asked(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"this asks for nothing of stored documents: {error}") from error
    if isinstance(asked, ReadStored) and not 1 <= len(asked.ids) <= IDS_MAX:
        raise UsageError(f"1 to {IDS_MAX} documents are asked for at a time")
    if isinstance(asked, WriteStored) and not 1 <= len(asked.changes) <= CHANGES_MAX:
        raise UsageError(f"1 to {CHANGES_MAX} documents are changed at a time")
    return asked


def decode_answer(data: bytes) -> Answer:
    """Return an answer.

    Raises:
        msgspec.MsgspecError: it is none.
        UnicodeDecodeError: likewise.
    """
    answer: Answer = _answer(data)
    return answer


def refused(error: MillstreamError) -> Refused:
    """Return an error as it is sent."""
    name = next(one.__name__ for one in type(error).__mro__ if one.__name__ in _KINDS)
    return Refused(name, error.code, str(error))


def error_of(refusal: Refused) -> MillstreamError:
    """Return an error as it was sent."""
    kind = _KINDS.get(refusal.kind, UnavailableError)
    return kind(refusal.reason, code=refusal.code)


class StoredHost(Protocol):
    """What this node has of the buckets that it shares with others."""

    async def answer(self, bucket: str, asked: Asked) -> Answer:
        """Answer another node.

        Raises:
            MillstreamError: as `DocumentHost` does; nothing was done.
        """

    async def put_blob(self, bucket: str, pieces: AsyncIterator[bytes]) -> Blob:
        """Keep bytes of an attachment, durably."""

    def open_blob(self, bucket: str, sha256: bytes, begin: int, end: int) -> AsyncIterator[bytes]:
        """Return a range of bytes of an attachment; raises as `DocumentHost.open_blob`."""
