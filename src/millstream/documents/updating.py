"""What becomes of a document when it is changed over HTTP or by a replicator.

    interactive   a client's edit of a leaf that it names: a conflict, or one more revision
    replicated    a revision with its ancestors, from a peer: always taken, perhaps a conflict now
    purge         leaves that are taken away as if they had never been

Invariants:
1. Functions are pure: a document in, the next one out, None where nothing changes.
2. An edit extends a leaf, never an inner revision; without a revision it may only begin a
   document, or bring one back behind its deletion.
3. An attachment of the result is a new one, or one that a revision here has.
4. At most `revs_limit` generations of each leaf are left.

Elsewhere: trees (`documents.tree`, `documents.pruning`), what clients send (`documents.sent`),
keeping the bytes of attachments before (`gateway.aio.documents.attaching`).
Source: CouchDB's document API and replication protocol.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec

from millstream.documents.pruning import purged, stemmed
from millstream.documents.revision_ids import signature_of
from millstream.documents.revisions import (
    GENERATION_MAX,
    GENERATION_SENT_MAX,
    Path,
    checked_rev,
    parse_rev,
)
from millstream.documents.sent import Sent
from millstream.documents.stored import Attachment, Content, StoredDocument
from millstream.documents.tree import EMPTY, GrowingTree, RevisionTree
from millstream.errors import ConditionError, MillstreamError, UsageError
from millstream.model.sides import side_of, sidecar_of, split

__all__ = [
    "REPLACED_BYTES_MAX", "Change", "LongDecision", "Purge", "Replicated", "carry", "conflict",
    "interactive", "keep_purged", "purge", "replicated", "replicated_all", "sent_path",
]  # fmt: skip

REPLACED_BYTES_MAX: Final = 256 * 1024
"""Contents that a change carries of others that it replaced before they were stored."""
_CONTENT_BYTES: Final = 200
"""What a content takes besides its bytes, and each of its attachments."""
_NOTHING: Final[Mapping[str, Attachment]] = {}


class _Members(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A sidecar of which only the mark of a purge is read."""

    branches: msgspec.Raw
    foreign: msgspec.Raw
    contents: msgspec.Raw
    is_purged: bool = False
    replaced: msgspec.Raw = msgspec.Raw(msgspec.msgpack.encode({}))


_members_of: Final = msgspec.msgpack.Decoder(_Members).decode


@dataclass(frozen=True, slots=True)
class LongDecision:
    """A decision about a document that takes longer than a turn of the loop: a thread makes it."""

    decide: Callable[[StoredDocument | None], StoredDocument | None]

    def __call__(self, document: StoredDocument | None) -> StoredDocument | None:
        """Return the document as it shall be; None: it stays as it is."""
        return self.decide(document)


class Change(NamedTuple):
    """What a request makes of a document."""

    document: StoredDocument | None
    """The new document. None: it stays as it is."""
    rev: str
    """The revision that was asked for."""


class Replicated(NamedTuple):
    """What revisions from a peer make of a document together."""

    document: StoredDocument | None
    """The new document. None: it stays as it is."""
    told: list[tuple[str, bool] | MillstreamError]
    """The result of each change: the revision and whether it was new, or why it is refused."""


class Purge(NamedTuple):
    """What a purge makes of a document."""

    document: StoredDocument | None
    """The new document. None: it stays as it is."""
    revs: list[str]
    """Leaves that are gone."""


def conflict() -> ConditionError:
    """Return the refusal of an edit that does not extend a leaf."""
    return ConditionError("Document update conflict.", code="conflict")


def interactive(
    document: StoredDocument | None,
    sent: Sent,
    kept: Mapping[str, Attachment] = _NOTHING,
    *,
    revs_limit: int,
    deletes: bool = False,
    sign: Callable[..., str] = signature_of,
) -> Change:
    """Return what an edit makes of a document. Hot path.

    Args:
        document: as it is; None or one without revisions: there is none.
        sent: the edit; it names the leaf that it replaces.
        kept: attachments whose bytes came with it, by name.
        revs_limit: generations that stay.
        deletes: it is a DELETE, which there has to be something for.
        sign: does what `signature_of` does.

    Raises:
        ConditionError: `conflict`; `not_found`, nothing to delete; `missing_stub`.
        UsageError: `bad_request`.
    """
    present = document if document is not None and document.exists else None
    if deletes:
        _check_deletable(present, sent.rev)
    parent = _parent(present, sent.rev, sent.is_deleted)
    generation = 1 if parent is None else parse_rev(parent)[0] + 1
    if generation > GENERATION_MAX:
        raise UsageError("the document has the last generation there is", code="bad_request")
    begins_anew = parent is not None and sent.rev is None
    before = _content(present, parent) if sent.attachments and not begins_anew else None
    revpos = 1 if begins_anew else generation  # as CouchDB: it finds the deletion later
    kept = {name: one._replace(revpos=revpos) for name, one in kept.items()}
    content = _content_sent(sent, kept, [before] if before is not None else [])
    signature = sign(
        sent.body, sent.content, is_deleted=sent.is_deleted, parent=parent,
        attachments=content.attachments, term=sent.term,
        begins_anew=begins_anew,
    )  # fmt: skip
    rev = f"{generation}-{signature}"
    tree = EMPTY if present is None else present.tree
    if parent is not None and len(tree.branches) > 1 and tree.contains(rev):
        # A peer sent the same edit, without its ancestors: it learns them.
        tree = tree.merged(Path(generation, [signature, parse_rev(parent)[1]]))
    else:
        tree = tree.extended(parent, signature, is_deleted=sent.is_deleted)
    tree = stemmed(tree, revs_limit)
    return Change(_with(present, tree, rev, content), rev)


def _check_deletable(present: StoredDocument | None, rev: str | None) -> None:
    if present is None:
        raise ConditionError("missing", code="not_found")
    if present.winner.is_deleted and (rev is None or present.tree.leaf(rev) is None):
        raise ConditionError("deleted", code="not_found")
    if rev is None:
        raise conflict()


def _parent(present: StoredDocument | None, rev: str | None, is_deleted: bool) -> str | None:
    """Return the leaf that an edit extends, None: it begins the document."""
    if rev is None:
        if present is None:
            return None
        winner = present.winner
        if not winner.is_deleted or is_deleted:
            raise conflict()
        return winner.rev
    if present is None or present.tree.branch_of_leaf(rev) is None:
        raise conflict()
    return rev


def _content(document: StoredDocument | None, rev: str | None) -> Content | None:
    return None if document is None or rev is None else document.contents.get(rev)


def replicated(
    document: StoredDocument | None,
    sent: Sent,
    kept: Mapping[str, Attachment] = _NOTHING,
    *,
    revs_limit: int,
) -> Change:
    """Return what a revision from a peer makes of a document.

    Args:
        document: as it is; None: there is none.
        sent: the revision, with its ancestors in `_revisions`.
        kept: attachments whose bytes came with it, by name.
        revs_limit: generations that stay.

    Raises:
        ConditionError: `missing_stub`.
        UsageError: `bad_request`.
    """
    path = sent_path(sent)
    rev = path.rev
    present = document if document is not None and document.exists else None
    tree = EMPTY if present is None else present.tree
    if present is not None and tree.contains(rev):
        return Change(_with_ancestors(present, path, revs_limit), rev)
    content = _content_from(sent, path, kept, {} if present is None else present.contents)
    tree = stemmed(tree.merged(path, is_deleted=sent.is_deleted), revs_limit)
    return Change(_with(present, tree, rev, content), rev)


def replicated_all(
    document: StoredDocument | None,
    revisions: Sequence[tuple[Sent, Mapping[str, Attachment]]],
    *,
    revs_limit: int,
) -> Replicated:
    """Return what many revisions from a peer make of a document, one after the other.

    Each takes time for itself, however many there are. Branches are cut to `revs_limit` in the
    end: until then a revision is known behind which others came.

    Args:
        document: as it is; None: there is none.
        revisions: as `replicated` takes one, with what was kept of its attachments.
        revs_limit: generations that stay.
    """
    present = document if document is not None and document.exists else None
    growing = GrowingTree(EMPTY if present is None else present.tree)
    contents = {} if present is None else dict(present.contents)
    told: list[tuple[str, bool] | MillstreamError] = []
    for sent, kept in revisions:
        try:
            path = sent_path(sent)
            if growing.contains(path.rev):
                told.append((path.rev, growing.merge(path)))
                continue
            contents[path.rev] = _content_from(sent, path, kept, contents)
            growing.merge(path, is_deleted=sent.is_deleted)
            told.append((path.rev, True))
        except MillstreamError as error:
            told.append(error)
    if not any(isinstance(one, tuple) and one[1] for one in told):
        return Replicated(None, told)
    tree = stemmed(growing.tree(), revs_limit)
    leaves = tree.leaf_revs()
    after = StoredDocument(tree, {rev: contents[rev] for rev in leaves if rev in contents})
    if present is not None:
        contents = {rev: contents[rev] for rev in contents.keys() - present.contents.keys()}
    carry(after, StoredDocument(tree, contents))
    return Replicated(after, told)


def _content_from(
    sent: Sent, path: Path, kept: Mapping[str, Attachment], contents: Mapping[str, Content]
) -> Content:
    """Return what a revision from a peer holds; its stubs may speak of `contents`."""
    table = sent.attachments
    if not table:
        return Content(sent.body, _NOTHING)
    kept = {
        name: one._replace(revpos=_revpos(table.get(name, {}), path.start))
        for name, one in kept.items()
    }
    known = list(contents.values()) if table.keys() - kept.keys() else []
    return _content_sent(sent, kept, known)


def _with_ancestors(present: StoredDocument, path: Path, revs_limit: int) -> StoredDocument | None:
    """Return a document that learned where a revision comes from, None if it knew."""
    tree = present.tree.merged(path)
    if tree is present.tree:
        return None
    tree = stemmed(tree, revs_limit)
    if list(tree.branches) == list(present.tree.branches):
        return None
    known = present.contents
    return StoredDocument(tree, {rev: known[rev] for rev in tree.leaf_revs() if rev in known})


def sent_path(sent: Sent) -> Path:
    """Return a revision and its ancestors as a peer sent them.

    Raises:
        UsageError: `bad_request`.
    """
    path = sent.path
    if path is None:
        if sent.rev is None:
            raise UsageError(
                "When `new_edits: false`, the document needs `_rev` or `_revisions` specified",
                code="bad_request",
            )
        generation, signature = parse_rev(sent.rev)
        path = Path(generation, [signature])
    if path.start > GENERATION_SENT_MAX:
        raise UsageError(
            f"a generation above {GENERATION_SENT_MAX}: nothing could come after it",
            code="bad_request",
        )
    return path


def _with(
    present: StoredDocument | None, tree: RevisionTree, rev: str, content: Content
) -> StoredDocument:
    """Return a document with one more leaf."""
    contents = {rev: content}
    if present is not None and max(len(tree.branches), len(present.tree.branches)) > 1:
        known = present.contents
        for leaf in tree.leaf_revs():
            if leaf != rev and leaf in known:
                contents[leaf] = known[leaf]
    return StoredDocument(tree, contents)


def _content_sent(sent: Sent, kept: Mapping[str, Attachment], known: Sequence[Content]) -> Content:
    """Return what a revision holds; `known`: what its stubs may speak of."""
    if not sent.attachments:
        return Content(sent.body, _NOTHING)
    attachments: dict[str, Attachment] = {}
    value: bytes | None = None
    for name, entry in sent.attachments.items():
        new = kept.get(name)
        if new is not None:
            attachments[name] = new
            continue
        found = _stub(name, entry, known)
        attachments[name] = found[0]
        if not found[0].sha256:
            value = found[1]
    return Content(sent.body, attachments, value)


def _revpos(entry: Mapping[str, Any], generation: int) -> int:
    """Return the generation in which an attachment was added; a peer says it of its own."""
    said = entry.get("revpos")
    return said if type(said) is int and 1 <= said <= generation else generation


def _stub(
    name: str, entry: Mapping[str, Any], known: Sequence[Content]
) -> tuple[Attachment, bytes | None]:
    if entry.get("stub") is not True:
        raise UsageError(f"Attachment {name!r} has neither data nor a stub", code="bad_request")
    found = [
        (content.attachments[name], content.value)
        for content in known
        if name in content.attachments
    ]
    digest = entry.get("digest")
    if digest is not None:
        found = [one for one in found if _digest(one[0]) == digest]
    if not found:
        raise ConditionError(
            f"Invalid attachment stub: no revision here has {name!r}", code="missing_stub"
        )
    return found[0]


def _digest(attachment: Attachment) -> str:
    return "md5-" + b64encode(attachment.md5).decode()


def purge(document: StoredDocument | None, revs: Sequence[str]) -> Purge:
    """Return what a purge of leaves makes of a document; what is no leaf is left alone.

    Raises:
        UsageError: `bad_request`: not a revision.
    """
    if document is None or not document.exists:
        return Purge(None, [])
    leaves = set(document.tree.leaf_revs())
    gone = [rev for rev in dict.fromkeys(map(checked_rev, revs)) if rev in leaves]
    if not gone:
        return Purge(None, [])
    tree = purged(document.tree, gone)
    left = set(tree.leaf_revs())
    contents = {rev: one for rev, one in document.contents.items() if rev in left}
    return Purge(StoredDocument(tree, contents, is_purged=True), gone)


def carry(after: StoredDocument, before: StoredDocument) -> None:
    """Let a change have the contents that it replaces of one that does not reach the log.

    Where two changes of a document come so soon that only the later one is stored. What was
    replaced longest ago goes first. A purge carries nothing; what comes after it is marked as it.
    """
    if after.is_purged:
        return
    after.is_purged = before.is_purged
    known = {**before.replaced, **before.contents, **after.replaced}
    gone = [rev for rev in known if rev not in after.contents and after.tree.contains(rev)]
    after.replaced, size = {}, 0
    for rev in sorted(gone, key=lambda rev: parse_rev(rev)[0], reverse=True):
        content = known[rev]
        size += _CONTENT_BYTES * (1 + len(content.attachments))
        size += len(content.body) + len(content.value or b"")
        if size > REPLACED_BYTES_MAX:
            break
        after.replaced[rev] = content


def keep_purged(before: bytes, side: bytes, *, is_stored: bool) -> bytes:
    """Return the side of a change, marked as a purge if it supersedes one that is not stored.

    What that one purged is not to be found behind this one.

    Args:
        before: side of the change before; empty: none.
        side: of the change; it has a sidecar if `before` has one.
        is_stored: whether the change before is in the log.
    """
    old = b"" if is_stored else sidecar_of(before)
    if not old or not _members_of(memoryview(old)[1:]).is_purged:
        return side
    lineage, sidecar = split(side)
    members = msgspec.structs.replace(_members_of(memoryview(sidecar)[1:]), is_purged=True)
    return side_of(lineage, sidecar[:1] + msgspec.msgpack.encode(members))
