"""Documents on their way in: rights, design documents compiled, validation, and the change itself.

Invariants:
1. Each document is judged and changed by itself; a refusal concerns no other one.
2. What `validate_doc_update` functions agreed to is what is stored: if the document changed while
   they were asked, they are asked again.
3. Design documents are stored only if they compile, but for those that a peer has: what it stored
   is stored here, too, and what cannot be run in it says so when it is asked.
4. Documents of `_replicator` are stored only if their members have the types of a job's.

Elsewhere: what becomes of a document (`documents.updating`), the functions
(`gateway.core.api.node.FunctionApi`), attachments (`attaching`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Any, Final, NamedTuple

import msgspec
from aiohttp import web

from millstream.documents.json_text import LARGE_BYTES
from millstream.documents.reading import Shown, text_of
from millstream.documents.revision_ids import signature_of
from millstream.documents.sent import Sent
from millstream.documents.stored import Attachment, StoredDocument
from millstream.documents.updating import (
    Change,
    LongDecision,
    Replicated,
    interactive,
    replicated,
    replicated_all,
)
from millstream.errors import MillstreamError, UnavailableError, UsageError
from millstream.gateway.aio.answers import NODE_API, USER, require
from millstream.gateway.aio.parsing import beside
from millstream.gateway.core.api.documents import Decide
from millstream.gateway.core.user_documents import shown_roles
from millstream.model.bucket_names import REPLICATOR
from millstream.replication.core.jobs import JOB_BYTES_MAX, check_document
from millstream.runtime.pace import Turns
from millstream.views.core.design.design_code import DocumentChange

__all__ = [
    "PORTION_EDITS", "QUICK_REVISIONS_MAX", "TOGETHER_MAX", "VALIDATION_TRIES_MAX", "Edit",
    "Stored", "user_context", "write", "write_one",
]  # fmt: skip

VALIDATION_TRIES_MAX: Final = 10
"""How often a change is validated anew because its document changed meanwhile."""
PORTION_EDITS: Final = 400
"""Changes of one request that are made and become durable together."""
TOGETHER_MAX: Final = 400
"""Changes of one document that are decided and stored together."""
QUICK_REVISIONS_MAX: Final = 128
"""Most revisions of a request that are merged into a tree in the loop: some 2 ms."""
_DESIGN: Final = "_design/"
_MOVED: Final = "moved"
"""Code of the refusal of a change whose document is not as it was validated."""
_WITH_PATH: Final = Shown(revs=True)
_NOTHING: Final[Mapping[str, Attachment]] = {}


class Edit(NamedTuple):
    """One change that a request wants."""

    doc_id: str
    sent: Sent
    kept: Mapping[str, Attachment] = _NOTHING
    is_replicated: bool = False
    deletes: bool = False


class Stored(NamedTuple):
    """What was made of it."""

    rev: str
    is_new: bool
    """Whether anything had to be stored."""


class _Pending:
    """One edit under way: what is decided of it, by the document as it is then."""

    def __init__(self, edit: Edit, revs_limit: int) -> None:
        self.edit = edit
        self._revs_limit = revs_limit
        self.rev = ""
        self.expected: list[str] | None = None
        """Leaves of the document that was validated; None: nothing was."""
        self.is_large = len(edit.sent.body) > LARGE_BYTES and not edit.is_replicated
        """The signature takes long, and is known when the change is decided."""
        self._signed: tuple[dict[str, Any], str] | None = None

    def change(self, document: StoredDocument | None) -> Change:
        edit, limit = self.edit, self._revs_limit
        if edit.is_replicated:
            return replicated(document, edit.sent, edit.kept, revs_limit=limit)
        sign = self._signature if self.is_large else signature_of
        return interactive(
            document, edit.sent, edit.kept, revs_limit=limit, deletes=edit.deletes, sign=sign
        )

    async def sign(self, document: StoredDocument | None) -> None:
        """Learn the signature of a large edit, for a document as it is."""
        if self.is_large:
            await beside(self._sign, document)

    def _sign(self, document: StoredDocument | None) -> None:
        edit = self.edit
        with suppress(MillstreamError):  # it is refused when it is decided
            interactive(
                document, edit.sent, edit.kept, revs_limit=self._revs_limit, deletes=edit.deletes,
                sign=self._remember,
            )  # fmt: skip

    def _remember(self, *texts: Any, **said: Any) -> str:
        self._signed = said, signature_of(*texts, **said)
        return self._signed[1]

    def _signature(self, *_: Any, **said: Any) -> str:
        """Return the signature that is known; `moved`: the document is another one now."""
        if self._signed is None or self._signed[0] != said:
            raise _moved()
        return self._signed[1]

    def decide(self, document: StoredDocument | None) -> StoredDocument | None:
        if self.expected is not None and self.expected != leaves_of(document):
            raise _moved()
        change = self.change(document)
        self.rev = change.rev
        return change.document


class _Together:
    """Revisions of one document from a peer, which are stored at once.

    Args:
        pending: these revisions.
        revs_limit: of the database.
    """

    def __init__(self, pending: Sequence[_Pending], revs_limit: int) -> None:
        self.pending = pending
        self._revs_limit = revs_limit
        self.made: Replicated | None = None
        paths = (one.edit.sent.path for one in pending)
        revisions = sum(1 if path is None else len(path.ids) for path in paths)
        is_long = revisions > QUICK_REVISIONS_MAX
        self.decision = LongDecision(self._decide) if is_long else self._decide

    def _decide(self, document: StoredDocument | None) -> StoredDocument | None:
        edits = [one.edit for one in self.pending]
        self.made = replicated_all(
            document, [(one.sent, one.kept) for one in edits], revs_limit=self._revs_limit
        )
        return self.made.document

    def told(self) -> list[Stored | MillstreamError]:
        """Return what came of each."""
        made = self.made
        assert made is not None, "it was decided"
        return [one if isinstance(one, MillstreamError) else Stored(*one) for one in made.told]


def _moved() -> MillstreamError:
    return MillstreamError("the document has changed", code=_MOVED)


def leaves_of(document: StoredDocument | None) -> list[str]:
    """Return the leaves of a document; none if it does not exist."""
    return [] if document is None or not document.exists else document.tree.leaf_revs()


async def write_one(request: web.Request, bucket: str, edit: Edit, *, is_durable: bool) -> Stored:
    """Make one change; raises why it is refused."""
    [done] = await write(request, bucket, [edit], is_durable=is_durable)
    if isinstance(done, MillstreamError):
        raise done
    return done


async def write(
    request: web.Request, bucket: str, edits: Sequence[Edit], *, is_durable: bool
) -> list[Stored | MillstreamError]:
    """Make changes, each by itself; return what came of each, in order."""
    done: list[Stored | MillstreamError] = []
    turns = Turns()
    for begin in range(0, len(edits), PORTION_EDITS):
        await turns.give()
        portion = edits[begin : begin + PORTION_EDITS]
        done += await _write(request, bucket, portion, is_durable=is_durable)
    return done


async def _write(
    request: web.Request, bucket: str, edits: Sequence[Edit], *, is_durable: bool
) -> list[Stored | MillstreamError]:
    api = request.app[NODE_API]
    settings = await api.documents.settings(bucket)
    done: list[Stored | MillstreamError | None] = [None] * len(edits)
    pending = [_Pending(edit, settings.revs_limit) for edit in edits]
    for at, edit in enumerate(edits):
        if edit.doc_id.startswith(_DESIGN):
            done[at] = await _design_refusal(request, bucket, edit)
        elif bucket == REPLICATOR and not (edit.deletes or edit.sent.is_deleted):
            done[at] = _job_refusal(edit)
    open_ones = [at for at, refusal in enumerate(done) if refusal is None]
    validates = await api.functions.validates(bucket)
    vain, together_max = 0, TOGETHER_MAX
    while open_ones and vain < VALIDATION_TRIES_MAX:
        now = open_ones
        if validates:
            now = _first_of_each(edits, open_ones)
            await _validate(request, bucket, pending, now, done, settings.security)
            now = [at for at in now if done[at] is None]
        await _sign(request, bucket, pending, now, done)
        now = [at for at in now if done[at] is None]
        if not validates:
            groups = _groups(edits, now, together_max)
            joint = [_Together([pending[at] for at in one], settings.revs_limit) for one in groups]
            fits = await _change_together(request, bucket, joint, is_durable)
            for numbers, told in zip(groups, fits, strict=True):
                for at, one_told in zip(numbers, told, strict=True):
                    done[at] = one_told
            grouped = set[int]().union(*groups)
            now = [at for at in now if at not in grouped]
            if any(done[at] is None for at in grouped):  # not all of them fit
                together_max //= 8
        await _change_alone(request, bucket, pending, now, done, is_durable)
        left = [at for at in open_ones if done[at] is None]
        vain = vain + 1 if len(left) == len(open_ones) else 0
        open_ones = left
    late = UnavailableError(
        f"the document changed {VALIDATION_TRIES_MAX} times while this change was validated; "
        "try again",
        code="temporarily_unavailable",
    )
    return [late if result is None else result for result in done]


async def _sign(
    request: web.Request,
    bucket: str,
    pending: Sequence[_Pending],
    now: Sequence[int],
    done: list[Stored | MillstreamError | None],
) -> None:
    """Learn the signatures of large edits; those that were validated have theirs."""
    for at in now:
        one = pending[at]
        if not one.is_large or one.expected is not None:
            continue
        try:
            await one.sign(await request.app[NODE_API].documents.read(bucket, one.edit.doc_id))
        except MillstreamError as error:
            done[at] = error


async def _change_alone(
    request: web.Request,
    bucket: str,
    pending: Sequence[_Pending],
    now: Sequence[int],
    done: list[Stored | MillstreamError | None],
    is_durable: bool,
) -> None:
    """Make changes each by itself; those whose document has moved stay open."""
    wanted: list[tuple[str, Decide]] = [
        (pending[at].edit.doc_id, pending[at].decide) for at in now
    ]
    documents = request.app[NODE_API].documents
    answers = await documents.update(bucket, wanted, is_durable=is_durable) if wanted else []
    for at, answer in zip(now, answers, strict=True):
        if not isinstance(answer, MillstreamError):
            one = pending[at]
            done[at] = Stored(one.rev, answer.seqno > 0)
        elif answer.code != _MOVED:
            done[at] = answer


async def _change_together(
    request: web.Request,
    bucket: str,
    joint: Sequence[_Together],
    is_durable: bool,
) -> list[Sequence[Stored | MillstreamError | None]]:
    """Make changes that are stored at once; return the result of each; None: they do not fit."""
    if not joint:
        return []
    wanted: list[tuple[str, Decide]] = [
        (one.pending[0].edit.doc_id, one.decision) for one in joint
    ]
    answers = await request.app[NODE_API].documents.update(bucket, wanted, is_durable=is_durable)
    told: list[Sequence[Stored | MillstreamError | None]] = []
    for one, answer in zip(joint, answers, strict=True):
        if not isinstance(answer, MillstreamError):
            told.append(one.told())
        else:
            does_fit = answer.code != "too_large"
            told.append([answer if does_fit else None] * len(one.pending))
    return told


def _groups(edits: Sequence[Edit], numbers: Sequence[int], most: int) -> list[list[int]]:
    """Return those of the edits that are a peer's revisions of one document, several at a time."""
    by_id: dict[str, list[int]] = {}
    for at in numbers:
        if edits[at].is_replicated:
            by_id.setdefault(edits[at].doc_id, []).append(at)
    return [
        some[begin : begin + most]
        for some in by_id.values()
        if len(some) > 1 and most > 1
        for begin in range(0, len(some), most)
    ]


def _first_of_each(edits: Sequence[Edit], numbers: Sequence[int]) -> list[int]:
    """Return the first change of each document: the next one is judged by its result."""
    first: dict[str, int] = {}
    for at in numbers:
        first.setdefault(edits[at].doc_id, at)
    return list(first.values())


async def _design_refusal(request: web.Request, bucket: str, edit: Edit) -> MillstreamError | None:
    try:
        require(request, "design", bucket)
        if not edit.sent.is_deleted and not edit.is_replicated:
            name = edit.doc_id.removeprefix(_DESIGN)
            await request.app[NODE_API].designs.check(bucket, name, edit.sent.body)
    except MillstreamError as error:
        return error
    return None


def _job_refusal(edit: Edit) -> MillstreamError | None:
    try:
        if len(edit.sent.body) > JOB_BYTES_MAX:
            raise UsageError(
                f"a document of _replicator has at most {JOB_BYTES_MAX} bytes: make several jobs, "
                "or give a selector",
                code="document_too_large",
            )
        check_document(edit.sent.content)
    except MillstreamError as error:
        return error
    return None


async def _validate(
    request: web.Request,
    bucket: str,
    pending: Sequence[_Pending],
    open_ones: Sequence[int],
    done: list[Stored | MillstreamError | None],
    security: bytes,
) -> None:
    """Ask the functions of the database; refusals go into `done`."""
    api = request.app[NODE_API]
    asked, changes = list[int](), list[DocumentChange]()
    wanted = [at for at in open_ones if not pending[at].edit.doc_id.startswith(_DESIGN)]
    ids = [pending[at].edit.doc_id for at in wanted]
    async with aclosing(api.documents.read_all(bucket, ids)) as found:
        for at in wanted:
            one = pending[at]
            try:
                document = await anext(found)
                if isinstance(document, MillstreamError):
                    raise document
                one.expected = leaves_of(document)
                await one.sign(document)
                change = one.change(document)
            except MillstreamError as error:
                done[at] = error
                continue
            if change.document is not None:
                asked.append(at)
                changes.append(_change_of(one.edit.doc_id, change, document))
    if not changes:
        return
    refusals = await api.functions.validate(
        bucket, changes, msgspec.json.encode(user_context(request, bucket)), security
    )
    for at, refusal in zip(asked, refusals, strict=True):
        if refusal is not None:
            done[at] = refusal


def _change_of(doc_id: str, change: Change, before: StoredDocument | None) -> DocumentChange:
    after = change.document
    assert after is not None, "a change"
    leaf = after.tree.leaf(change.rev)
    assert leaf is not None, "what was written is a leaf"
    new = text_of(doc_id, after, leaf, _WITH_PATH)
    if before is None or not before.exists or before.winner.rev not in before.contents:
        return DocumentChange(new, None)
    return DocumentChange(new, text_of(doc_id, before, before.winner))


def user_context(request: web.Request, bucket: str) -> dict[str, Any]:
    """Return who asks, as functions of design documents see it."""
    user = request[USER]
    if user is None:
        is_open = request.app[NODE_API].users.is_empty
        return {"db": bucket, "name": None, "roles": ["_admin"] if is_open else []}
    return {"db": bucket, "name": user.name, "roles": shown_roles(user.roles)}
