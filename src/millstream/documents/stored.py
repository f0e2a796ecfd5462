"""Documents as they are stored: a value, and a sidecar where there is more to say than kv can.

    sidecar   version 1 byte, MessagePack array:
        branches      [parent, first generation, signatures, [deleted generations]]
        foreign       {16 bytes: text} of signatures that are not 32 hex digits
        contents      one a branch, of its leaf: nil, not known; or [body, attachments, inline]
        purged        whether this change is a purge
        replaced      {revision: content} of others, may be absent: see `StoredDocument.replaced`

A change without a sidecar is of a *linear* document: its revisions are computed from its lineage.

Invariants:
1. The value is a live winner's: its body, or, if kv wrote it, what kv wrote. In the sidecar its
   body is empty then, or a mark (see 4). An empty body of another leaf is `{}`.
2. A value that is no JSON object, or has a special top-level member, is the
   body `{}` and an attachment `value` without a blob. What kv writes leaves other attachments
   alone.
3. What kv does to a document with a sidecar is the same on every copy: it is done once, where the
   change is made, and travels as the sidecar.
4. What the leaves hold is worked out when it is asked for: most changes do not need it. Whether a
   large value is a JSON object is looked up once. The sidecar says it of what came over HTTP: its
   body of a large winner is `{}`, which is read as the value is an object.

Elsewhere: trees (`documents.tree`), lineages (`model.lineage`), sides (`model.sides`), who decides
what is stored (`documents.updating`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b, md5
from struct import Struct
from typing import Final, NamedTuple

import msgspec

from millstream.documents.json_text import LARGE_BYTES, is_plain_object
from millstream.documents.pruning import stemmed
from millstream.documents.revisions import SIGNATURE_BYTES, is_signature
from millstream.documents.tree import EMPTY, Branch, Leaf, RevisionTree
from millstream.errors import CorruptionError, UsageError
from millstream.model.limits import VALUE_BYTES_MAX
from millstream.model.revision import Revisions
from millstream.model.sides import split
from millstream.wire.frames import is_put, seqno_of, value_in

__all__ = [
    "EMPTY_BODY",
    "REVS_LIMIT_DEFAULT",
    "SIDECAR_BYTES_MAX",
    "VALUE_ATTACHMENT",
    "VERDICTS_MAX",
    "Attachment",
    "Content",
    "Packed",
    "StoredDocument",
    "blobs_of",
    "by_kv",
    "checked_sidecar",
    "is_sidecar",
    "load",
    "only_leaf",
    "pack",
]

REVS_LIMIT_DEFAULT: Final = 1000
"""Generations of a document's revisions that are kept, by default."""
SIDECAR_BYTES_MAX: Final = VALUE_BYTES_MAX
"""Revisions, attachment tables and bodies of conflicts of one document."""
VALUE_ATTACHMENT: Final = "value"
"""Name of the attachment that a kv value is which is no document."""
EMPTY_BODY: Final = b"{}"
VERDICTS_MAX: Final = 4096
"""Large values of which is remembered whether they are JSON objects."""
_IS_OBJECT: Final = EMPTY_BODY
"""Body of a live winner in the sidecar: its value was found to be an object."""
_VALUE_TYPE: Final = "application/octet-stream"
_MD5_BYTES: Final = 16
_SHA256_BYTES: Final = 32
_VERSION: Final = 1
_VERSION_BYTE: Final = bytes((_VERSION,))
_NUMBERS: Final = Struct(">QQQ")
_CAS_SEQNO: Final = Struct(">16xQQ")
_REV: Final = Struct(">32xQ")
_verdicts: Final[dict[tuple[str, bytes, int, int, int], bool]] = {}
"""Whether large values are JSON objects, by bucket, key, CAS, seqno and length."""


class Attachment(NamedTuple):
    """What a document says of an attachment."""

    content_type: str
    revpos: int
    """Generation in which it was added; 1 where that edit made a deleted document anew."""
    length: int
    """The length of the plain bytes."""
    md5: bytes
    """The MD5 of the stored bytes: the digest that clients see."""
    sha256: bytes
    """The SHA-256 of the stored bytes: the name of the blob. Empty: the bytes are `Content.value`.
    """
    encoding: str
    """How they are stored: "" as they are, or `gzip`."""
    stored_length: int


class Content(NamedTuple):
    """What a revision holds."""

    body: bytes
    """JSON object without special members."""
    attachments: Mapping[str, Attachment]
    """The attachments by name, in the order of the document."""
    value: bytes | None = None
    """Bytes of an attachment without a blob."""


class Packed(NamedTuple):
    """A document as it is written."""

    value: bytes | None
    """The value. None: a tombstone."""
    sidecar: bytes


class _Sidecar(msgspec.Struct, frozen=True, array_like=True, gc=False):
    branches: list[Branch]
    foreign: dict[bytes, str]
    contents: list[Content | None]
    is_purged: bool = False
    replaced: dict[str, Content] = {}


_decode: Final = msgspec.msgpack.Decoder(_Sidecar).decode
_shape: Final = msgspec.msgpack.Decoder(
    tuple[list[Branch], dict[bytes, str], msgspec.Raw, bool]
).decode
_encode: Final = msgspec.msgpack.Encoder().encode
_NOTHING: Final[Mapping[str, Attachment]] = {}
_NONE: Final[Mapping[str, Content]] = {}
_IN_FRAME: Final = Content(b"", _NOTHING)
_EMPTY: Final = Content(EMPTY_BODY, _NOTHING)


class StoredDocument:
    """A document's revisions, and what the leaves hold.

    Args:
        contents: of every leaf whose content is known, by revision.
        is_purged: whether the change that made it is a purge.
    """

    __slots__ = ("_contents", "_tree", "is_purged", "replaced", "seqno")

    def __init__(
        self, tree: RevisionTree, contents: Mapping[str, Content], *, is_purged: bool = False
    ) -> None:
        self._tree = tree
        self._contents = contents
        self.is_purged = is_purged
        self.seqno = 0
        """The seqno of the newest change in its partition; 0: not stored yet."""
        self.replaced: Mapping[str, Content] = {}
        """Contents that are of no leaf, and that no earlier change in the log has."""

    @property
    def tree(self) -> RevisionTree:
        """All revisions."""
        return self._tree

    @property
    def contents(self) -> Mapping[str, Content]:
        """The contents of all leaves whose content is known, by revision."""
        return self._contents

    @property
    def known_revs(self) -> Collection[str]:
        """The revisions in `contents`, without working out what they hold."""
        return self.contents.keys()

    @property
    def frame_bytes(self) -> int:
        """Length of the change that it was read from, 0 if it is a new one."""
        return 0

    @property
    def exists(self) -> bool:
        """Whether it has revisions. A purge may leave none; then the document does not exist."""
        return not self.tree.is_empty

    @property
    def winner(self) -> Leaf:
        """The leaf that the document shows; it has to exist."""
        return self.tree.winner


class _Linear(StoredDocument):
    """One that kv alone wrote; what it is asked for is computed then."""

    __slots__ = ("_bucket_uuid", "_frame", "_generation", "_is_deleted", "_key", "_lineage",
                 "_revisions", "_revs_limit", "_winner")  # fmt: skip

    def __init__(
        self,
        bucket_uuid: str,
        key: bytes,
        frame: bytes | memoryview,
        lineage: bytes,
        revs_limit: int,
    ) -> None:
        super().__init__(EMPTY, {})
        self.seqno = seqno_of(frame)
        self._bucket_uuid = bucket_uuid
        self._revisions = _revisions_of(bucket_uuid)
        self._key = key
        self._frame = frame
        self._lineage = lineage
        self._generation: int = _REV.unpack_from(frame)[0]
        self._is_deleted = not is_put(frame)
        self._revs_limit = revs_limit
        self._winner: Leaf | None = None

    @property
    def tree(self) -> RevisionTree:
        if self._tree is EMPTY:
            digits_of, key, lineage = self._revisions.digits_of, self._key, self._lineage
            newest = self._generation
            oldest = max(1, newest - self._revs_limit + 1)
            digits = [digits_of(key, lineage, one) for one in range(oldest, newest + 1)]
            deleted = (newest,) if self._is_deleted else ()
            branch = Branch(-1, oldest, bytes.fromhex("".join(digits)), deleted)
            self._tree = RevisionTree([branch])
        return self._tree

    @property
    def contents(self) -> Mapping[str, Content]:
        if not self._contents:
            content = Content(EMPTY_BODY, _NOTHING)
            if not self._is_deleted:
                value = value_in(self._frame)
                is_object = _is_object(self._bucket_uuid, self._key, self._frame, value)
                content = _written_by_kv(value, _NOTHING, self._generation, is_object=is_object)
            self._contents = {self.winner.rev: content}
        return self._contents

    @property
    def known_revs(self) -> Collection[str]:
        return (self.winner.rev,)

    @property
    def frame_bytes(self) -> int:
        return len(self._frame)

    @property
    def exists(self) -> bool:
        return True

    @property
    def winner(self) -> Leaf:
        if self._winner is None:
            rev = self._revisions.of(self._key, self._lineage, self._generation)
            self._winner = Leaf(rev, self._is_deleted)
        return self._winner


class _Revised(StoredDocument):
    """One with a sidecar; what its leaves hold is worked out when it is asked for."""

    __slots__ = ("_bucket_uuid", "_frame", "_key", "_parts")

    def __init__(
        self, bucket_uuid: str, key: bytes, frame: bytes | memoryview, parts: _Sidecar
    ) -> None:
        super().__init__(
            RevisionTree(parts.branches, parts.foreign), {}, is_purged=parts.is_purged
        )
        self.seqno = seqno_of(frame)
        self._bucket_uuid = bucket_uuid
        self._key = key
        self._frame = frame
        self._parts: _Sidecar | None = parts
        self.replaced = parts.replaced

    @property
    def contents(self) -> Mapping[str, Content]:
        if self._parts is not None:
            self._contents = self._contents_of(self._parts)
            self._parts = None
        return self._contents

    @property
    def known_revs(self) -> Collection[str]:
        if self._parts is None:
            return self._contents.keys()
        winner = self._tree.winner_branch if is_put(self._frame) and self.exists else None
        revs = zip(self._tree.leaf_revs(), self._parts.contents, strict=True)
        return [rev for n, (rev, one) in enumerate(revs) if one is not None or n == winner]

    @property
    def frame_bytes(self) -> int:
        return len(self._frame)

    def _contents_of(self, parts: _Sidecar) -> Mapping[str, Content]:
        tree, frame = self._tree, self._frame
        revs = tree.leaf_revs()
        contents = {
            rev: one if one.body else one._replace(body=EMPTY_BODY)
            for rev, one in zip(revs, parts.contents, strict=True)
            if one is not None
        }
        if is_put(frame) and revs:
            number = tree.winner_branch
            kept, value = parts.contents[number] or _IN_FRAME, value_in(frame)
            generation = tree.branches[number].last
            known = kept.attachments.get(VALUE_ATTACHMENT)
            if known is not None and not known.sha256 and kept.value is None:
                found = Content(EMPTY_BODY, kept.attachments, value)
            elif kept.body == _IS_OBJECT or _is_object(self._bucket_uuid, self._key, frame, value):
                found = Content(value, kept.attachments, kept.value)
            else:
                found = _written_by_kv(value, kept.attachments, generation, is_object=False)
            contents[revs[number]] = found
        return contents


@lru_cache(maxsize=64)
def _revisions_of(bucket_uuid: str) -> Revisions:
    return Revisions(bucket_uuid)


def load(
    bucket_uuid: str,
    key: bytes,
    frame: bytes | memoryview,
    side: bytes,
    revs_limit: int = REVS_LIMIT_DEFAULT,
) -> StoredDocument:
    """Return a document from the newest change of its key.

    Args:
        bucket_uuid: of the bucket of birth.
        key: for the error.
        frame: of a put, deletion or expiration.
        side: what stands beside it.
        revs_limit: generations that are computed of a document without a sidecar.

    Raises:
        CorruptionError: the side is none.
    """
    try:
        lineage, sidecar = split(side)
        if not sidecar:
            return _Linear(bucket_uuid, key, frame, lineage, revs_limit)
        parts = _unpacked(sidecar)
    except (ValueError, msgspec.MsgspecError) as error:
        raise CorruptionError(
            f"document {key!r}: its revisions and conflicts cannot be read ({error}); restore it "
            "from a replica or a backup",
            code="bad_sidecar",
        ) from error
    return _Revised(bucket_uuid, key, frame, parts)


def _unpacked(sidecar: bytes) -> _Sidecar:
    if sidecar[0] != _VERSION:
        raise ValueError(f"a sidecar of version {sidecar[0]}, known is {_VERSION}")
    parts = _decode(memoryview(sidecar)[1:])
    branches = parts.branches
    if len(branches) != len(parts.contents):
        raise ValueError("not one content a branch")
    for branch in branches:
        if not branch.signatures or len(branch.signatures) % SIGNATURE_BYTES or branch.first < 1:
            raise ValueError("a branch without revisions")
        if branch.parent != -1:
            above = branches[branch.parent] if 0 <= branch.parent < len(branches) else branch
            if not above.first < branch.first <= above.last:
                raise ValueError("a branch that leaves none")
    return parts


def _is_object(bucket_uuid: str, key: bytes, frame: bytes | memoryview, value: bytes) -> bool:
    """Return whether the value of a change is a JSON object, remembered of large ones."""
    if len(value) <= LARGE_BYTES:
        return is_plain_object(value)
    name = (bucket_uuid, key, *_CAS_SEQNO.unpack_from(frame), len(value))
    verdict = _verdicts.get(name)
    if verdict is None:
        verdict = is_plain_object(value)
        if len(_verdicts) >= VERDICTS_MAX:
            _verdicts.clear()
        _verdicts[name] = verdict
    return verdict


def _written_by_kv(
    value: bytes, attachments: Mapping[str, Attachment], generation: int, *, is_object: bool
) -> Content:
    if is_object:
        return Content(value, attachments)
    digest = md5(value, usedforsecurity=False).digest()
    size = len(value)
    shown = Attachment(_VALUE_TYPE, generation, size, digest, b"", "", size)
    return Content(EMPTY_BODY, {**attachments, VALUE_ATTACHMENT: shown}, value)


def only_leaf(sidecar: bytes) -> tuple[int, bytes, bool] | None:
    """Return generation, signature and whether it is deleted of a document's only leaf. Hot path.

    None where it has none or several, or one of a foreign kind, or where this is no sidecar:
    `load` says more.
    """
    try:
        branches, foreign, _, _ = _shape(memoryview(sidecar)[1:])
        [branch] = branches
    except (ValueError, msgspec.MsgspecError):
        return None
    if sidecar[0] != _VERSION or foreign or branch.parent != -1:
        return None
    signature = branch.signatures[-SIGNATURE_BYTES:]
    last = branch.last
    if len(signature) != SIGNATURE_BYTES or last < 1:
        return None
    return last, signature, bool(branch.deleted) and branch.deleted[-1] == last


def is_sidecar(data: bytes) -> bool:
    """Return whether these bytes are a sidecar."""
    try:
        _unpacked(data)
    except (IndexError, ValueError, msgspec.MsgspecError):
        return False
    return True


def checked_sidecar(data: bytes, *, is_deletion: bool) -> bytes | None:
    """Return a sidecar that a client gives with a value; None: it does not belong to one.

    What it says of the value is left out, so that the value is judged like any other one that kv
    wrote; so is what it replaced. Bodies of conflicts are judged here.
    """
    try:
        parts = _unpacked(data)
    except (IndexError, ValueError, msgspec.MsgspecError):
        return None
    tree, contents = RevisionTree(parts.branches, parts.foreign), parts.contents
    winner = None if tree.is_empty else tree.winner_branch
    is_live = winner is not None and not tree.branches[winner].is_deleted
    if is_live == is_deletion or not all(map(is_signature, parts.foreign.values())):
        return None
    for number, content in enumerate(contents):
        is_in_frame = is_live and number == winner
        if content is not None and not _is_content(content, is_in_frame=is_in_frame):
            return None
    if is_live and winner is not None and (kept := contents[winner]) and kept.body:
        contents[winner] = kept._replace(body=b"")
    elif not parts.replaced:
        return data
    return _sidecar(tree, contents, is_purged=parts.is_purged)


def _is_content(content: Content, *, is_in_frame: bool) -> bool:
    """Return whether a leaf can hold this; `is_in_frame`: its body is the value."""
    if content.body and not is_in_frame and not is_plain_object(content.body):
        return False
    bytes_are_here = content.value is not None
    return all(
        len(one.md5) == _MD5_BYTES
        and min(one.revpos, one.length, one.stored_length) >= 0
        and (
            len(one.sha256) == _SHA256_BYTES
            if one.sha256
            else name == VALUE_ATTACHMENT and (bytes_are_here or is_in_frame)
        )
        for name, one in content.attachments.items()
    )


def blobs_of(sidecar: bytes) -> frozenset[bytes]:
    """Return the names of the blobs that a sidecar names: SHA-256 of its attachments.

    Raises:
        CorruptionError: it is none.
    """
    try:
        parts = _unpacked(sidecar)
    except (IndexError, ValueError, msgspec.MsgspecError) as error:
        raise CorruptionError(f"a sidecar cannot be read ({error})", code="bad_sidecar") from error
    contents = [*filter(None, parts.contents), *parts.replaced.values()]
    attachments = [one for entry in contents for one in entry.attachments.values()]
    return frozenset(one.sha256 for one in attachments if one.sha256)


def pack(document: StoredDocument) -> Packed:
    """Return a document as it is written; without what it replaced if there is no room for that.

    Raises:
        UsageError: `too_large`: more revisions, attachments or conflicts than a document may have.
    """
    tree = document.tree
    known = document.contents
    revs = tree.leaf_revs()
    contents = [known.get(rev) for rev in revs]
    value = None
    if revs and not tree.branches[tree.winner_branch].is_deleted:
        number = tree.winner_branch
        content = known[revs[number]]
        if _is_kv_value(content):
            value, kept, mark = content.value, None, b""
        else:
            value, kept = content.body, content.value
            mark = _IS_OBJECT if len(value) > LARGE_BYTES else b""
        contents[number] = Content(mark, content.attachments, kept)
    for replaced in (document.replaced, _NONE):
        sidecar = _sidecar(tree, contents, replaced, is_purged=document.is_purged)
        if len(sidecar) <= SIDECAR_BYTES_MAX:
            return Packed(value, sidecar)
    raise UsageError(
        f"the revisions and conflicts of this document take {len(sidecar)} bytes, at most "
        f"{SIDECAR_BYTES_MAX} may be kept; delete or purge conflicts",
        code="too_large",
    )


def _is_kv_value(content: Content) -> bool:
    """Return whether it is what kv wrote, which then is the value again."""
    shown = content.attachments.get(VALUE_ATTACHMENT)
    return content.body == EMPTY_BODY and shown is not None and not shown.sha256


def _sidecar(
    tree: RevisionTree,
    contents: Sequence[Content | None],
    replaced: Mapping[str, Content] = _NONE,
    *,
    is_purged: bool,
) -> bytes:
    # As `_Sidecar` has them.
    members = (tree.branches, tree.foreign, contents, is_purged)
    return _VERSION_BYTE + _encode((*members, replaced) if replaced else members)


def by_kv(
    bucket_uuid: str, key: bytes, side: bytes, is_deleted: bool, branch: int, seqno: int, rev: int
) -> bytes:
    """Return the sidecar after kv changed a document that has one.

    A put extends the winner; a deletion or expiration extends every live leaf by a deletion. The
    other leaves stay. `REVS_LIMIT_DEFAULT` generations are kept. It is never refused: what expires
    has to go, however much is known of it.

    Args:
        bucket_uuid: of the bucket.
        key: of the document.
        side: of the document before.
        is_deleted: whether the change deletes it.
        branch: history branch of the change.
        seqno: of the change.
        rev: revision count of the change.

    Raises:
        ValueError: the side has no sidecar.
    """
    parts = _unpacked(split(side)[1])
    tree = RevisionTree(parts.branches, parts.foreign)
    contents = parts.contents
    base = blake2b(bucket_uuid.encode() + b"\0" + key, digest_size=SIGNATURE_BYTES)
    base.update(_NUMBERS.pack(branch, seqno, rev))
    written = _EMPTY if is_deleted else _IN_FRAME
    if tree.is_empty:
        tree = tree.extended(None, _signature(base, ""), is_deleted=is_deleted)
        return _sidecar(tree, [written], is_purged=False)
    if is_deleted:
        numbers = [n for n, one in enumerate(tree.branches) if not one.is_deleted]
    else:
        numbers = [tree.winner_branch]
    children = {}
    for number in numbers:
        children[number] = _signature(base, tree.leaf_at(number).rev)
        before = contents[number]
        contents[number] = written
        if before is not None and not is_deleted and not tree.branches[number].is_deleted:
            kept = {name: one for name, one in before.attachments.items() if one.sha256}
            contents[number] = Content(b"", kept)  # all but the value before
    grown = stemmed(tree.with_children(children, is_deleted=is_deleted), REVS_LIMIT_DEFAULT)
    return _sidecar(grown, contents, is_purged=False)


def _signature(base: blake2b, parent: str) -> str:
    digest = base.copy()
    digest.update(parent.encode())
    return digest.hexdigest()
