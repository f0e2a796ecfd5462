"""Documents with revision trees, for tests of what stores them."""

from __future__ import annotations

from hashlib import md5, sha256

from millstream.documents.revisions import Path, parse_rev
from millstream.documents.stored import EMPTY_BODY, Attachment, Content, StoredDocument
from millstream.documents.tree import EMPTY


def signature(number: int) -> str:
    """Return 32 hex digits."""
    return f"{number:032x}"


def with_leaf(
    document: StoredDocument | None,
    rev: str,
    body: bytes = EMPTY_BODY,
    *,
    blobs: tuple[bytes, ...] = (),
    is_deleted: bool = False,
) -> StoredDocument:
    """Return the document with one more leaf, a root; with attachments of these bytes."""
    generation, digits = parse_rev(rev)
    tree = EMPTY if document is None else document.tree
    contents = {} if document is None else dict(document.contents)
    grown = tree.merged(Path(generation, [digits]), is_deleted=is_deleted)
    attachments = {f"a{at}": attachment(data) for at, data in enumerate(blobs)}
    contents[rev] = Content(body, attachments)
    return StoredDocument(grown, contents)


def attachment(data: bytes) -> Attachment:
    """Return what a document says of bytes attached to it."""
    digest = md5(data, usedforsecurity=False).digest()
    name = sha256(data).digest()
    return Attachment("text/plain", 1, len(data), digest, name, "", len(data))
