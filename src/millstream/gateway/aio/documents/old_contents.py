"""Documents with the contents of some of their old revisions.

Invariants:
1. A content is shown only if the tree of the document has its revision.
2. A document with old contents is a copy, and never written.

Elsewhere: finding them (`kv.core.revisions.old_revisions`), the text (`documents.reading`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from millstream.documents.revisions import SIGNATURE_BYTES
from millstream.documents.stored import EMPTY_BODY, Content, StoredDocument
from millstream.gateway.aio.parsing import prepare
from millstream.gateway.aio.room import hold
from millstream.gateway.core.api.documents import DocumentApi

__all__ = ["with_old"]

_UNREAD: Final = Content(EMPTY_BODY, {})
"""Stands for a content that is there, and was not asked for."""


async def with_old(
    documents: DocumentApi,
    bucket: str,
    doc_id: str,
    document: StoredDocument | None,
    revs: Iterable[str],
    *,
    lists_all: bool = False,
) -> StoredDocument | None:
    """Return a document with the contents of old revisions, as far as they are still there.

    Args:
        documents: of the node.
        bucket: name of the database.
        doc_id: of the document.
        document: as it is, prepared.
        revs: revisions whose contents are wanted.
        lists_all: `contents` of the result has all revisions that can be read; those that are not
            wanted are empty there.

    Raises:
        UnavailableError: it is not known now what is there; there is no room for it.
    """
    if document is None or not document.exists:
        return document
    known, tree = document.contents, document.tree
    wanted = [rev for rev in dict.fromkeys(revs) if rev not in known and tree.contains(rev)]
    revisions = sum(len(one.signatures) for one in tree.branches) // SIGNATURE_BYTES
    if not wanted and (not lists_all or len(known) == revisions):
        return document
    found = await documents.old(bucket, doc_id, wanted, lists_all=lists_all)
    hold(sum(one.frame_bytes for one, _ in found.documents))
    contents = {rev: _UNREAD for rev in found.revs if tree.contains(rev)}
    for one, has in found.documents:
        await prepare(one)
        held = {**one.replaced, **one.contents}
        contents |= {rev: held[rev] for rev in wanted if rev in has and rev in held}
    shown = StoredDocument(tree, {**contents, **known}, is_purged=document.is_purged)
    shown.seqno = document.seqno
    return shown
