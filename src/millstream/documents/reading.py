"""Documents as text for clients, and what is said of their revisions.

Invariants:
1. A body stands in the text as it was written; what is said of it is put in front.
2. A revision whose content is not here any more is missing, not an error.

Elsewhere: what is stored (`documents.stored`), which options pages take (`gateway`).
Source: CouchDB's document API.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from millstream.documents.revisions import Path, checked_rev, parse_rev, to_bytes
from millstream.documents.stored import Attachment, Content, StoredDocument
from millstream.documents.tree import Leaf

__all__ = [
    "COPIED_BYTES_MAX", "PLAIN", "Data", "Piece", "Shown", "ancestor_generation",
    "differences", "newer_attachments", "open_leaves", "pieces_of_text", "text_of",
    "within",
]  # fmt: skip

_encode: Final = msgspec.json.encode
Piece = bytes | memoryview
"""A piece of a text."""
Data = Mapping[str, Sequence[bytes]]
"""Pieces of the base64 of attachments, by name."""
_NOTHING: Final[Data] = {}
COPIED_BYTES_MAX: Final = 64 * 1024
"""A larger body is a piece of its own, and not copied."""
_SPACE: Final = ord(" ")


class Shown(NamedTuple):
    """What is said of a document besides its body."""

    revs: bool = False
    revs_info: bool = False
    conflicts: bool = False
    deleted_conflicts: bool = False
    local_seq: int = 0
    """0: not."""
    encoding_info: bool = False


PLAIN: Final = Shown()


def text_of(
    doc_id: str,
    document: StoredDocument,
    leaf: Leaf,
    shown: Shown = PLAIN,
    *,
    data: Data = _NOTHING,
    following: Collection[str] = (),
) -> bytes:
    """Return a leaf as JSON text, in one piece; see `pieces_of_text`. Hot path."""
    pieces = pieces_of_text(doc_id, document, leaf, shown, data=data, following=following)
    if len(pieces) == 1 and isinstance(pieces[0], bytes):
        return pieces[0]
    return b"".join(pieces)


def pieces_of_text(
    doc_id: str,
    document: StoredDocument,
    leaf: Leaf,
    shown: Shown = PLAIN,
    *,
    data: Data = _NOTHING,
    following: Collection[str] = (),
) -> list[Piece]:
    """Return a leaf as JSON text, in pieces: what is large in it is not copied. Hot path.

    Args:
        doc_id: of the document.
        document: all of it.
        leaf: one whose content is known.
        shown: what else is said.
        data: attachments that stand in the text.
        following: names of attachments that follow the text.
    """
    content = document.contents[leaf.rev]
    head = b'{"_id":%b,"_rev":%b' % (_encode(doc_id), _encode(leaf.rev))
    if leaf.is_deleted:
        head += b',"_deleted":true'
    pieces: list[Piece] = []
    if content.attachments:
        head += b',"_attachments":{'
        for entry in _table(content, shown, data, following):
            if len(head) + len(entry) > COPIED_BYTES_MAX:
                pieces.append(head)
                head = entry
            else:
                head += entry
        head += b"}"
    if shown is not PLAIN:
        special = _special(document, leaf, shown)
        if special:
            head += b"," + _encode(special)[1:-1]
    # What kv wrote may have spaces around its braces.
    body = content.body.strip()
    if len(body) > COPIED_BYTES_MAX and body[1] > _SPACE:
        return [*pieces, head + b",", memoryview(body)[1:]]
    rest = body[1:].lstrip()
    return [*pieces, head + (rest if rest == b"}" else b"," + rest)]


def within(
    before: bytes, pieces: Sequence[Piece], behind: bytes
) -> tuple[bytes, tuple[Piece, ...]]:
    """Return a text with something around it: its beginning, and the pieces that follow."""
    if len(pieces) == 1:  # a small one
        return b"".join((before, pieces[0], behind)), ()
    return before, (*pieces, behind)


def _special(document: StoredDocument, leaf: Leaf, shown: Shown) -> dict[str, Any]:
    said: dict[str, Any] = {}
    tree = document.tree
    if shown.revs or shown.revs_info:
        path = tree.path(leaf.rev)
        assert path is not None, "a leaf is known"
        if shown.revs:
            said["_revisions"] = {"start": path.start, "ids": path.ids}
        if shown.revs_info:
            said["_revs_info"] = _revs_info(document, path)
    if shown.local_seq:
        said["_local_seq"] = shown.local_seq
    if shown.conflicts:
        found = [rev for rev in tree.conflicts() if rev != leaf.rev]
        if found:
            said["_conflicts"] = found
    if shown.deleted_conflicts:
        found = [rev for rev in tree.deleted_conflicts() if rev != leaf.rev]
        if found:
            said["_deleted_conflicts"] = found
    return said


def _revs_info(document: StoredDocument, path: Path) -> list[dict[str, str]]:
    contents = document.contents
    deleted = {
        (generation, branch.at(generation))
        for branch in document.tree.branches
        for generation in branch.deleted
    }
    return [
        {
            "rev": rev,
            "status": "deleted" if (path.start - number, to_bytes(signature)) in deleted
            else "available" if rev in contents else "missing",
        }
        for number, (rev, signature) in enumerate(zip(path.revs(), path.ids, strict=True))
    ]  # fmt: skip


def _table(
    content: Content, shown: Shown, data: Data, following: Collection[str]
) -> Iterator[bytes]:
    """Yield the inside of `_attachments`."""
    before = b""
    for name, one in content.attachments.items():
        known: dict[str, Any] = {
            "content_type": one.content_type,
            "revpos": one.revpos,
            "digest": "md5-" + b64encode(one.md5).decode(),
        }
        if name not in data:
            known["length"] = one.length
            known["follows" if name in following else "stub"] = True
        is_coded = shown.encoding_info or name in following
        if one.encoding and is_coded:
            known |= {"encoding": one.encoding, "encoded_length": one.stored_length}
        entry = b"%b%b:%b" % (before, _encode(name), _encode(known))
        before = b","
        if name not in data:
            yield entry
            continue
        yield entry[:-1] + b',"data":"'
        yield from data[name]
        yield b'"}'


def ancestor_generation(document: StoredDocument, rev: str, known: Iterable[str]) -> int:
    """Return the generation of the newest of `known` that led to a revision, 0 if none did."""
    path = document.tree.path(rev)
    ancestors = set() if path is None else set(path.revs())
    return max((parse_rev(one)[0] for one in known if one in ancestors), default=0)


def newer_attachments(
    document: StoredDocument, rev: str, known: Sequence[str] | None
) -> dict[str, Attachment]:
    """Return the attachments of a leaf that who has the revisions `known` lacks; None: all."""
    attachments = document.contents[rev].attachments
    if not attachments:
        return {}
    since = 0 if known is None else ancestor_generation(document, rev, known)
    return {name: one for name, one in attachments.items() if one.revpos > since}


def open_leaves(
    document: StoredDocument | None, revs: Sequence[str] | None, *, latest: bool
) -> list[Leaf | str]:
    """Return the leaves that `open_revs` asks for; what is missing as its text.

    Args:
        document: None: there is none.
        revs: None: all leaves.
        latest: the leaves that a revision led to stand for it.
    """
    present = document if document is not None and document.exists else None
    if revs is None:
        return [] if present is None else list(present.tree.leaves())
    found: dict[str, Leaf | str] = {}
    there = {} if present is None else _known(present, revs)
    for rev in revs:
        leaves = [there[rev]] if rev in there else []
        if latest and present is not None and not (leaves and present.tree.leaf(rev)):
            below = present.tree.leaves_below(checked_rev(rev))
            leaves = [leaf for leaf in below if leaf.rev in present.contents]
        for leaf in leaves:
            found.setdefault(leaf.rev, leaf)
        if not leaves:
            found.setdefault(rev, rev)
    return list(found.values())


def _known(document: StoredDocument, revs: Sequence[str]) -> dict[str, Leaf]:
    """Return revisions whose content is known, those of `revs` at least; mostly leaves."""
    winner, known = document.winner, document.contents
    if all(rev == winner.rev for rev in revs):
        return {winner.rev: winner} if winner.rev in known else {}
    old = {rev: Leaf(rev, document.tree.is_deletion(rev)) for rev in revs if rev in known}
    return old | {leaf.rev: leaf for leaf in document.tree.leaves() if leaf.rev in known}


def differences(document: StoredDocument | None, revs: Sequence[str]) -> dict[str, list[str]]:
    """Return which revisions are missing, and what of ours may be their ancestors.

    Empty: none is missing.

    Raises:
        UsageError: `bad_request`: not a revision.
    """
    if document is None or not document.exists:
        return {"missing": [checked_rev(rev) for rev in revs]} if revs else {}
    missing = document.tree.missing(revs)
    if not missing:
        return {}
    ancestors = document.tree.possible_ancestors(missing)
    said = {"missing": missing}
    if ancestors:
        said["possible_ancestors"] = ancestors
    return said
