"""Contents of replaced revisions, readable until a compaction.

The tree of a document has the names of its old revisions; their contents are not stored. A node
keeps in memory the contents replaced through its HTTP port, as far as there is room.

Invariants:
1. At most `OLD_BYTES_MAX` are kept; the oldest entry is dropped first.
2. A content is shown only for a document of the same database whose tree has its revision: a
   database created anew under an old name has none of it. A purge removes the contents of its
   document.
3. Old contents are never written: a document with old contents is a copy.

Elsewhere: reading (`documents.reading`), writing (`gateway.aio.documents.writing`).
Source: CouchDB, which keeps all old revisions until the next compaction.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Final

from millstream.documents.stored import Content, StoredDocument

__all__ = ["OLD_BYTES_MAX", "OldRevisions"]

OLD_BYTES_MAX: Final = 32 * 1024 * 1024
"""Old revisions that a node keeps in memory, their names included."""
_ENTRY_BYTES: Final = 400
"""Overhead of an entry."""
_Place = tuple[str, str, str]
"""Uuid of the database, document, revision."""


class OldRevisions:
    """The old revisions of a node.

    Args:
        bytes_max: bound of all.
    """

    def __init__(self, bytes_max: int = OLD_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._kept: OrderedDict[_Place, Content] = OrderedDict()
        self._revs: dict[tuple[str, str], set[str]] = {}
        """Uuid of the database, document -> revisions that are kept."""
        self.bytes = 0

    def keep(
        self, uuid: str, doc_id: str, before: StoredDocument | None, after: StoredDocument
    ) -> None:
        """Keep the contents that a change of a document replaced."""
        if before is None or not before.exists:
            return
        self.keep_contents(uuid, doc_id, before.contents, after)

    def keep_contents(
        self, uuid: str, doc_id: str, before: Mapping[str, Content], after: StoredDocument
    ) -> None:
        """Keep the contents of revisions that are no longer leaves of a document."""
        for rev in before.keys() - after.contents.keys():
            if after.tree.contains(rev):
                self._add((uuid, doc_id, rev), before[rev])

    def shown(
        self, uuid: str, doc_id: str, document: StoredDocument | None
    ) -> StoredDocument | None:
        """Return a document with its kept old contents."""
        revs = self._revs.get((uuid, doc_id))
        if document is None or not revs or not document.exists:
            return document
        old = {rev: self._kept[uuid, doc_id, rev] for rev in revs if document.tree.contains(rev)}
        copy = StoredDocument(
            document.tree, {**old, **document.contents}, is_purged=document.is_purged
        )
        copy.seqno = document.seqno
        return copy

    def forget(self, uuid: str) -> None:
        """Remove the contents of a database: it is compacted."""
        for place in [place for place in self._kept if place[0] == uuid]:
            self._remove(place)

    def forget_document(self, uuid: str, doc_id: str) -> None:
        """Remove the contents of a document: it is purged."""
        for rev in list(self._revs.get((uuid, doc_id), ())):
            self._remove((uuid, doc_id, rev))

    def _add(self, place: _Place, content: Content) -> None:
        if place in self._kept:
            self._remove(place)
        size = _size(place, content)
        if size > self._bytes_max:
            return
        self._kept[place] = content
        self._revs.setdefault(place[:2], set()).add(place[2])
        self.bytes += size
        while self.bytes > self._bytes_max:
            self._remove(next(iter(self._kept)))

    def _remove(self, place: _Place) -> None:
        self.bytes -= _size(place, self._kept.pop(place))
        revs = self._revs[place[:2]]
        revs.discard(place[2])
        if not revs:
            del self._revs[place[:2]]
        assert self.bytes >= 0, "bytes are taken off as they were added"


def _size(place: _Place, content: Content) -> int:
    return (
        _ENTRY_BYTES * (1 + len(content.attachments))
        + sum(map(len, place))
        + len(content.body)
        + len(content.value or b"")
    )
