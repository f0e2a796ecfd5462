"""What a change makes of a document, or why it is refused.

Invariants:
1. An interactive change extends a leaf, by one generation; its revision is a function of what it
   says (`documents.revision_ids`), and what names no leaf is a conflict.
2. A replicated change is never a conflict: it is merged. One that tells nothing new changes
   nothing, and is a success; what is known of a revision stays, whatever is sent under its name.
3. A stub takes over what this document has under its name; nothing is stored that has no bytes.
4. Nothing is read, waited for or stored here: blobs are stored before, by the caller.

Elsewhere: requests (`documents.sent`), answers (`documents.reading`), trees (`documents.tree`).
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from millstream.documents.json_text import parse
from millstream.documents.pruning import stemmed, without
from millstream.documents.revision_ids import signature_of
from millstream.documents.revisions import GENERATION_MAX, Path, parse_rev
from millstream.documents.sent import Sent, SentAttachment
from millstream.documents.stored import (
    EMPTY_BODY,
    REVS_LIMIT_DEFAULT,
    Attachment,
    Content,
    StoredDocument,
)
from millstream.documents.tree import EMPTY, RevisionTree
from millstream.errors import ConditionError, UsageError

__all__ = [
    "Change",
    "Purge",
    "deleted",
    "interactive",
    "parent_of",
    "purged",
    "replicated",
    "revised",
    "with_attachment",
]

_NOTHING: Final[Mapping[str, Attachment]] = {}


class Change(NamedTuple):
    """What comes of a change."""

    document: StoredDocument | None
    """None: there is nothing to store, and that is a success."""
    rev: str
    """The revision that the change made, or that was there."""


class Purge(NamedTuple):
    """What comes of a purge."""

    document: StoredDocument | None
    """None: none of the revisions is a leaf."""
    revs: list[str]
    """The leaves that were taken away."""


def interactive(
    document: StoredDocument | None,
    sent: Sent,
    *,
    stored: Mapping[str, Attachment] = _NOTHING,
    revs_limit: int = REVS_LIMIT_DEFAULT,
) -> Change:
    """Return what a client's own change makes of a document. Hot path.

    Args:
        document: None where there is none.
        sent: names the leaf that is replaced by its `rev`.
        stored: what is known of the bytes of `sent.new_attachments()`.
        revs_limit: generations that are kept.

    Raises:
        ConditionError: `conflict`; `missing_stub`.
        UsageError: `bad_request`: an attachment without bytes, or a generation too many.
    """
    parent = parent_of(document, sent.rev, is_deleted=sent.is_deleted)
    if not sent.attachments:
        content = Content(sent.body, _NOTHING)
    else:
        generation = 1 if parent is None else parse_rev(parent)[0] + 1
        sources = _contents_of(document, parent)
        content = _attached(sent, sources, stored, generation, keeps_revpos=False)
    return _extended(
        document, parent, content, sent.content, is_deleted=sent.is_deleted, revs_limit=revs_limit
    )


def revised(
    document: StoredDocument | None,
    rev: str | None,
    content: Content,
    *,
    is_deleted: bool = False,
    revs_limit: int = REVS_LIMIT_DEFAULT,
) -> Change:
    """Do what `interactive` does with what is stored already: a copy, another table.

    Raises:
        ConditionError: `conflict`.
    """
    parent = parent_of(document, rev, is_deleted=is_deleted)
    return _extended(
        document, parent, content, parse(content.body), is_deleted=is_deleted,
        revs_limit=revs_limit,
    )  # fmt: skip


def with_attachment(
    document: StoredDocument | None,
    rev: str | None,
    name: str,
    attachment: Attachment | None,
    *,
    revs_limit: int = REVS_LIMIT_DEFAULT,
) -> Change:
    """Return what it makes of a document that one attachment is put or taken away (None).

    Raises:
        ConditionError: `conflict`; `missing`: there is no such attachment.
    """
    parent = parent_of(document, rev, is_deleted=False)
    before = Content(EMPTY_BODY, _NOTHING)
    if document is not None and parent is not None and not document.tree.is_deletion(parent):
        before = document.contents[parent]
    table = dict(before.attachments)
    if attachment is None:
        if table.pop(name, None) is None:
            raise ConditionError("Document is missing attachment", code="missing")
    else:
        generation = 1 if parent is None else parse_rev(parent)[0] + 1
        table[name] = attachment._replace(revpos=generation)
    content = Content(before.body, table, before.value if _needs_value(table) else None)
    return _extended(
        document, parent, content, parse(content.body), is_deleted=False, revs_limit=revs_limit
    )


def deleted(
    document: StoredDocument | None, rev: str | None, *, revs_limit: int = REVS_LIMIT_DEFAULT
) -> Change:
    """Return what a deletion of one leaf makes of a document.

    Raises:
        ConditionError: `missing`, `deleted`: there is nothing to delete; `conflict`.
    """
    if document is None or not document.exists:
        raise ConditionError("missing", code="missing")
    if document.winner.is_deleted:
        raise ConditionError("deleted", code="deleted")
    sent = Sent(EMPTY_BODY, {}, rev=rev, is_deleted=True)
    return interactive(document, sent, revs_limit=revs_limit)


def replicated(
    document: StoredDocument | None,
    sent: Sent,
    *,
    stored: Mapping[str, Attachment] = _NOTHING,
    revs_limit: int = REVS_LIMIT_DEFAULT,
) -> Change:
    """Return what a revision made elsewhere makes of a document (`new_edits=false`).

    Args:
        document: None where there is none.
        sent: with `_revisions`, or `_rev` alone.
        stored: what is known of the bytes of `sent.new_attachments()`.
        revs_limit: generations that are kept.

    Raises:
        ConditionError: `missing_stub`.
        UsageError: `bad_request`: it names no revision; an attachment without bytes.
    """
    path = sent.path
    if path is None:
        if sent.rev is None:
            raise UsageError(
                "a document of another database has to name its revision: _revisions or _rev",
                code="bad_request",
            )
        generation, signature = parse_rev(sent.rev)
        path = Path(generation, [signature])
    if len(path.ids) > revs_limit:
        path = Path(path.start, path.ids[:revs_limit])
    rev = path.rev
    tree = EMPTY if document is None else document.tree
    grown = stemmed(tree.merged(path, is_deleted=sent.is_deleted), revs_limit)
    if tree.contains(rev):
        is_same = grown is tree or _size(grown) == _size(tree)
        known = None if is_same else StoredDocument(grown, _still_leaves(document, grown))
        return Change(known, rev)
    content = Content(sent.body, _NOTHING)
    if sent.attachments:
        sources = [] if document is None else _by_nearness(document, path)
        content = _attached(sent, sources, stored, path.start, keeps_revpos=True)
    contents = _still_leaves(document, grown)
    contents[rev] = content
    return Change(StoredDocument(grown, contents), rev)


def _size(tree: RevisionTree) -> tuple[int, int, int]:
    """Return what tells a tree from one that learned more: branches, roots, revisions."""
    branches = tree.branches
    roots = sum(branch.parent < 0 for branch in branches)
    return len(branches), roots, sum(len(branch.signatures) for branch in branches)


def purged(document: StoredDocument | None, revs: Iterable[str]) -> Purge:
    """Return what is left when leaves are purged; revisions that are no leaves are passed over."""
    tree = EMPTY if document is None else document.tree
    numbers = {number: rev for rev in revs if (number := tree.branch_of_leaf(rev)) is not None}
    if document is None or not numbers:
        return Purge(None, [])
    left = without(tree, numbers)
    gone = set(numbers.values())
    contents = {rev: one for rev, one in document.contents.items() if rev not in gone}
    return Purge(StoredDocument(left, contents, is_purged=True), list(numbers.values()))


def parent_of(
    document: StoredDocument | None, rev: str | None, *, is_deleted: bool = False
) -> str | None:
    """Return the leaf that an interactive change extends, None where it is the first.

    Args:
        document: None where there is none.
        rev: what the change names.
        is_deleted: whether it is a deletion.

    Raises:
        ConditionError: `conflict`.
    """
    if document is None or not document.exists:
        if rev is None:
            return None
    elif rev is None:
        winner = document.winner
        if winner.is_deleted and not is_deleted:
            return winner.rev
    elif document.winner.rev == rev or document.tree.branch_of_leaf(rev) is not None:
        return rev
    raise ConditionError("Document update conflict.", code="conflict")


def _extended(
    document: StoredDocument | None,
    parent: str | None,
    content: Content,
    decoded: Mapping[str, Any],
    *,
    is_deleted: bool,
    revs_limit: int,
) -> Change:
    generation = 1
    if parent is not None:
        generation = parse_rev(parent)[0] + 1
        if generation > GENERATION_MAX:
            raise UsageError("the document has the last generation there is", code="bad_request")
    signature = signature_of(
        content.body, decoded, is_deleted=is_deleted, parent=parent,
        attachments=content.attachments,
    )  # fmt: skip
    rev = f"{generation}-{signature}"
    tree = EMPTY if document is None else document.tree
    tree = tree.extended(parent, signature, is_deleted=is_deleted)
    if generation > revs_limit:
        tree = stemmed(tree, revs_limit)
    contents = {} if document is None else dict(document.contents)
    if parent is not None:
        contents.pop(parent, None)
    contents[rev] = content
    return Change(StoredDocument(tree, contents), rev)


def _contents_of(document: StoredDocument | None, rev: str | None) -> list[Content]:
    if document is None or rev is None or rev not in document.contents:
        return []
    return [document.contents[rev]]


def _by_nearness(document: StoredDocument, path: Path) -> list[Content]:
    """Return what the leaves hold, those that the path goes on from first."""
    nearest = set(path.revs())
    contents = document.contents
    return [contents[rev] for rev in sorted(contents, key=lambda rev: rev not in nearest)]


def _still_leaves(document: StoredDocument | None, tree: RevisionTree) -> dict[str, Content]:
    if document is None:
        return {}
    contents = document.contents
    return {rev: contents[rev] for rev in tree.leaf_revs() if rev in contents}


def _attached(
    sent: Sent,
    sources: list[Content],
    stored: Mapping[str, Attachment],
    generation: int,
    *,
    keeps_revpos: bool,
) -> Content:
    """Return what a document with attachments holds: stubs and new ones put together."""
    table: dict[str, Attachment] = {}
    value: bytes | None = None
    for name, one in sent.attachments.items():
        if one.is_stub:
            source, table[name] = _known(name, one, sources)
            if not table[name].sha256:
                value = source.value
        elif name in stored:
            revpos = (one.revpos if keeps_revpos else None) or generation
            table[name] = stored[name]._replace(
                content_type=one.content_type, revpos=min(revpos, generation)
            )
        else:
            raise UsageError(f"attachment {name!r}: its bytes did not come", code="bad_request")
    return Content(sent.body, table, value)


def _known(name: str, stub: SentAttachment, sources: list[Content]) -> tuple[Content, Attachment]:
    """Return the attachment that a stub names, and where it stands.

    Raises:
        ConditionError: `missing_stub`.
    """
    for content in sources:
        found = content.attachments.get(name)
        if found is not None and stub.digest in (None, f"md5-{b64encode(found.md5).decode()}"):
            return content, found
    raise ConditionError(
        f"attachment {name!r} is a stub of what is not here; send its bytes", code="missing_stub"
    )


def _needs_value(table: Mapping[str, Attachment]) -> bool:
    return any(not one.sha256 for one in table.values())
