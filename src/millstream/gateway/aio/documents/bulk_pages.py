"""Many documents at once: written, read by revision, compared.

Invariants:
1. `_bulk_docs` and `_bulk_get` answer in the order of what was asked, one entry each, but for
   `new_edits=false`, where only refusals are told.
2. A bad document among good ones is refused alone; a request that makes no sense, whole.
3. What was answered as stored is durable, also if it was there already. So is what `_revs_diff`
   says is there, and what `_bulk_get` shows.

Elsewhere: single documents (`document_pages`), the changes (`writing`), purges
(`purge_pages`), texts (`documents.reading`).
Source: CouchDB's bulk API and replication protocol.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from itertools import compress
from typing import Any, Final, NamedTuple

import msgspec
from aiohttp import web

from millstream.documents.asked import DocumentsAsked, documents_asked, revs_asked
from millstream.documents.large_texts import BulkTexts, Named, named
from millstream.documents.reading import (
    PLAIN,
    Piece,
    Shown,
    differences,
    open_leaves,
    pieces_of_text,
    within,
)
from millstream.documents.revisions import checked_rev
from millstream.documents.sent import checked_id, is_legal_id, parse_local
from millstream.documents.stored import StoredDocument
from millstream.documents.tree import Leaf
from millstream.documents.updating import sent_path
from millstream.errors import AccessError, MillstreamError, UnavailableError, UsageError
from millstream.gateway.aio.answers import (
    DATABASE,
    DATABASE_PATH,
    NODE_API,
    answer,
    raw_answer,
    read_body,
    require,
)
from millstream.gateway.aio.documents.attaching import keep_inline
from millstream.gateway.aio.documents.documents_out import (
    inline_pieces,
    parts_of,
    send_attachment_pieces,
)
from millstream.gateway.aio.documents.local_pages import LOCAL_BYTES_MAX
from millstream.gateway.aio.documents.old_contents import with_old
from millstream.gateway.aio.documents.writing import Edit, Stored, write
from millstream.gateway.aio.parsing import (
    beside,
    interpreted,
    parsed,
    prepare,
    taken_apart,
    worked,
)
from millstream.gateway.aio.streaming import stream
from millstream.gateway.core.api.documents import DocumentApi
from millstream.gateway.core.document_options import OPEN_REVS_MAX, is_true, parse_revs
from millstream.gateway.core.errors import body_of
from millstream.gateway.core.multipart import end, missing_part
from millstream.runtime.pace import Turns

__all__ = [
    "BULK_BYTES_MAX", "REVISIONS_ASKED_MAX", "REVISIONS_OF_ONE_MAX", "REVISIONS_QUICK_MAX",
    "ROWS_ENCODED_MAX", "revs_by_id", "routes",
]  # fmt: skip

BULK_BYTES_MAX: Final = 128 * 1024 * 1024
"""Body of a request with many documents."""
REVISIONS_ASKED_MAX: Final = 100_000
"""Documents in one `_bulk_docs`, `_bulk_get` or `_revs_diff`."""
ROWS_ENCODED_MAX: Final = 1000
"""Rows of the answer to `_bulk_docs` that are encoded at a time."""
REVISIONS_QUICK_MAX: Final = 128
"""Revisions of one document that are compared in the loop."""
REVISIONS_OF_ONE_MAX: Final = 10_000
"""Revisions of one document in `_revs_diff` or `_purge`."""
_PATH: Final = "/"
"""Errors of documents are told as those of a database."""


class _Asked(NamedTuple):
    """An entry of `_bulk_get`."""

    id: str
    rev: str | None = None
    since: list[str] | None = None
    error: UsageError | None = None
    """Why it asks for nothing: answered in its place, the others are read."""

    @property
    def shown_id(self) -> str | None:
        """The id that was asked for; None: it names none."""
        return None if self.error is not None and not self.id else self.id


_LOCAL: Final = "_local/"
_OF_THE_WHOLE: Final = ("long_call_failed",)
"""Errors of one document for which all are refused: replicators pass over what a row refuses."""
_OF_A_CLIENTS_WHOLE: Final = (*_OF_THE_WHOLE, "illegal_docid", "doc_validation")
"""The same where clients write."""


# -- writing


async def _bulk_docs(request: web.Request) -> web.Response:
    bucket = request.match_info[DATABASE]
    require(request, "write", bucket, instead="design")
    bulk = await _sent_texts(request)
    is_replicated = not bulk.new_edits or request.query.get("new_edits") == "false"
    edits, told = await _edits(request, bucket, bulk, is_replicated)
    is_durable = request.query.get("batch") != "ok"
    done = await write(request, bucket, edits, is_durable=is_durable)
    said, at = list[dict[str, Any]](), iter(zip(edits, done, strict=True))
    turns = Turns()
    for known in told:
        await turns.give()
        if known is not None:
            said += [known] if known else []
            continue
        edit, one = next(at)
        if isinstance(one, Stored):
            if not is_replicated:
                said.append({"ok": True, "id": edit.doc_id, "rev": one.rev})
        else:
            name = Named(edit.doc_id, edit.sent.rev if is_replicated else None)
            said.append(_refused(name, one))
    rows = list[bytes]()
    for begin in range(0, len(said), ROWS_ENCODED_MAX):
        await turns.give()
        rows.append(msgspec.json.encode(said[begin : begin + ROWS_ENCODED_MAX])[1:-1])
    return raw_answer(b"[%b]\n" % b",".join(rows), status=201)


async def _sent_texts(request: web.Request) -> BulkTexts:
    """Return the documents in a request, and whether they are edits of a client."""
    if request.content_type != "application/json":
        raise UsageError("Content-Type must be application/json", code="bad_content_type")
    return await taken_apart(await read_body(request, BULK_BYTES_MAX), REVISIONS_ASKED_MAX)


async def _edits(
    request: web.Request, bucket: str, bulk: BulkTexts, is_replicated: bool
) -> tuple[list[Edit], list[dict[str, Any] | None]]:
    """Return the changes, and for each text None, or what is said of it as it is none.

    Local documents are none, and written here; what is said is empty where nothing is.

    Raises:
        UsageError: an id or a special member is illegal where clients write, or a replicated
            document has no revision: the whole request is refused.
    """
    documents = request.app[NODE_API].documents
    may = _Rights(request, bucket)
    edits, told = list[Edit](), list[dict[str, Any] | None]()
    stays = list[tuple[int, str, bytes | None, int | None]]()
    turns = Turns()
    for place, raw in enumerate(bulk.texts):
        await turns.give()
        text = bytes(raw)
        sent, local_id, is_unnamed = None, None, False
        try:
            if (local_id := bulk.local_ids.get(place)) is not None:
                may.check(local_id)
                stays.append((len(told), local_id, *await _local(text)))
                told.append({})
                continue
            sent = await parsed(text)
            if sent.id is None and is_replicated:
                raise UsageError("new_edits=false: a document needs _id", code="illegal_docid")
            doc_id = checked_id(sent.id) if sent.id is not None else secrets.token_hex(16)
            may.check(doc_id)
            if is_replicated:
                is_unnamed = sent.rev is None and sent.path is None
                sent_path(sent)
            kept = {}
            if sent.attachments:
                kept = await keep_inline(
                    documents, bucket, sent.attachments, is_replicated=is_replicated
                )
        except MillstreamError as error:
            is_bad_id = error.code == "illegal_docid"
            if is_unnamed:  # no peer sends that: who wrote it is to see it, as in CouchDB
                raise
            if error.code in (_OF_THE_WHOLE if is_replicated else _OF_A_CLIENTS_WHOLE):
                raise
            if is_bad_id:  # replicators go on after this one
                error = AccessError(str(error), code="forbidden")
            name = Named(sent.id, sent.rev) if sent else await interpreted(named, text)
            if not is_replicated:
                name.rev = None  # as in CouchDB
            told.append(_refused(name, error))
            continue
        edits.append(Edit(doc_id, sent, kept, is_replicated))
        told.append(None)
    for place, local_id, body, rev in stays:
        try:
            number = await documents.write_local(bucket, local_id.removeprefix(_LOCAL), body, rev)
        except MillstreamError as error:
            told[place] = _refused(Named(local_id), error)
        else:
            said = {"ok": True, "id": local_id, "rev": f"0-{number}"}
            told[place] = {} if is_replicated else said
    return edits, told


async def _local(text: bytes) -> tuple[bytes | None, int | None]:
    if len(text) > LOCAL_BYTES_MAX:
        raise UsageError(f"a local document has at most {LOCAL_BYTES_MAX} bytes", code="too_large")
    return await interpreted(parse_local, text)


class _Rights:
    """Which documents of a request its user may write: asked once for each kind."""

    def __init__(self, request: web.Request, bucket: str) -> None:
        self._refusals: dict[bool, MillstreamError | None] = {}
        for is_design in (False, True):
            try:
                require(request, "design" if is_design else "write", bucket)
                self._refusals[is_design] = None
            except AccessError as error:
                self._refusals[is_design] = error

    def check(self, doc_id: str) -> None:
        refusal = self._refusals[doc_id.startswith("_design/")]
        if refusal is not None:
            raise refusal


def _refused(name: Named, error: MillstreamError) -> dict[str, Any]:
    """Return the row of a document that is refused; who has no id that can be read has none."""
    said = {member: value for member, value in (("id", name.id), ("rev", name.rev))
            if isinstance(value, str)}  # fmt: skip
    return said | body_of(error, _PATH)


async def _full_commit(request: web.Request) -> web.Response:
    """Say that all that was answered is durable: nothing else is ever answered as stored.

    What `batch=ok` accepted, or kv wrote, is made durable here.
    """
    bucket = request.match_info[DATABASE]
    require(request, "write", bucket)
    documents = request.app[NODE_API].documents
    await documents.commit(bucket)
    info = await documents.info(bucket)
    said = {"ok": True, "instance_start_time": info.instance_start_time}
    return answer(said, status=201)


# -- comparing


async def revs_by_id(request: web.Request, ids_max: int) -> AsyncGenerator[dict[str, list[str]]]:
    """Yield what a body {id: [revisions]} asks for, some documents at a time.

    Raises:
        UsageError: `bad_request`, `bad_json`, `too_large`.
    """
    body, turns = await read_body(request, BULK_BYTES_MAX), Turns()
    for text in await interpreted(revs_asked, body, ids_max, REVISIONS_OF_ONE_MAX):
        await turns.give()
        yield msgspec.json.decode(text)


async def _differences(request: web.Request) -> AsyncGenerator[dict[str, dict[str, list[str]]]]:
    """Yield what is missing of the documents that a request asks for, some at a time."""
    bucket = request.match_info[DATABASE]
    require(request, "read", bucket, instead="write")
    documents, turns = request.app[NODE_API].documents, Turns()
    async for asked in revs_by_id(request, REVISIONS_ASKED_MAX):
        found: dict[str, dict[str, list[str]]] = {}
        async with aclosing(_known(documents, bucket, list(asked))) as known:
            async for doc_id, document in known:
                await turns.give()
                if isinstance(document, MillstreamError):
                    raise document
                revs = asked[doc_id]
                if len(revs) <= REVISIONS_QUICK_MAX:
                    said = differences(document, revs)
                else:
                    said = await beside(differences, document, revs)
                if said:
                    found[doc_id] = said
        yield found


async def _known(
    documents: DocumentApi, bucket: str, doc_ids: Sequence[str]
) -> AsyncGenerator[tuple[str, StoredDocument | MillstreamError | None], None]:
    """Yield documents by their ids, None also for an id that none can have.

    What is yielded can no longer be lost: replicators rely on it and do not look again.
    """
    legal = [is_legal_id(doc_id) for doc_id in doc_ids]
    wanted = list(compress(doc_ids, legal))
    async with aclosing(documents.read_all(bucket, wanted, is_durable=True)) as found:
        for doc_id, is_legal in zip(doc_ids, legal, strict=True):
            yield doc_id, await anext(found) if is_legal else None


async def _revs_diff(request: web.Request) -> web.Response:
    texts = [msgspec.json.encode(some)[1:-1] async for some in _differences(request) if some]
    return raw_answer(b"{%b}\n" % b",".join(texts))


async def _missing_revs(request: web.Request) -> web.Response:
    texts = [
        msgspec.json.encode({doc_id: one["missing"] for doc_id, one in some.items()})[1:-1]
        async for some in _differences(request)
        if some
    ]
    return raw_answer(b'{"missing_revs":{%b}}\n' % b",".join(texts))


# -- reading


async def _bulk_get(request: web.Request) -> web.StreamResponse:
    bucket = request.match_info[DATABASE]
    require(request, "read", bucket)
    body = await read_body(request, BULK_BYTES_MAX)
    asked = await interpreted(documents_asked, body, REVISIONS_ASKED_MAX, OPEN_REVS_MAX)
    given = {name: "true" if flag else "false" for name, flag in asked.flags.items()}
    given |= dict(request.query)
    shown = Shown(revs=True) if is_true(given, "revs") else PLAIN
    documents = request.app[NODE_API].documents
    getting = _Getting(
        documents, bucket, shown,
        latest=is_true(given, "latest"), attachments=is_true(given, "attachments"),
    )  # fmt: skip
    accept = request.headers.get("Accept", "")
    if "multipart/" in accept and "application/json" not in accept:
        boundary = secrets.token_hex(16)
        kind = "related" if "multipart/related" in accept else "mixed"
        response = web.StreamResponse(
            headers={"Content-Type": f'multipart/{kind}; boundary="{boundary}"'}
        )
        return await send_attachment_pieces(request, response, getting.parts(asked, boundary))
    return await stream(request, getting.results(asked), {})


def _asked(form: Mapping[str, Any] | None) -> _Asked:
    if form is None:
        return _Asked("", error=UsageError("document id missed", code="bad_request"))
    doc_id, rev, since = form["id"], form.get("rev"), form.get("atts_since")
    try:
        return _Asked(doc_id, rev, None if since is None else parse_revs(since))
    except UsageError as error:
        return _Asked(doc_id, rev, error=error)


class _Getting:
    """What one `_bulk_get` is answered with."""

    def __init__(
        self,
        documents: DocumentApi,
        bucket: str,
        shown: Shown,
        *,
        latest: bool,
        attachments: bool,
    ) -> None:
        self._documents, self._bucket, self._shown = documents, bucket, shown
        self._latest, self._attachments = latest, attachments

    async def results(self, asked: DocumentsAsked) -> AsyncIterator[Piece]:
        """Yield the JSON answer."""
        encode = msgspec.json.encode
        before = b'{"results":['
        async with aclosing(self._known(asked)) as known:
            async for one, document in known:
                before += b'{"id":%b,"docs":[' % encode(one.shown_id)
                async for first, more in self._texts(one, document):
                    yield before + first
                    for piece in more:
                        yield piece
                    before = b","
                yield b"]}" if before == b"," else before + b"]}"
                before = b","
        yield b"]}\n" if asked.length else before + b"]}\n"

    async def _known(
        self, asked: DocumentsAsked
    ) -> AsyncGenerator[tuple[_Asked, StoredDocument | MillstreamError | None], None]:
        turns = Turns()
        for text in asked.portions:
            some = list(map(_asked, msgspec.json.decode(text)))
            found = _known(self._documents, self._bucket, [one.id for one in some])
            async with aclosing(found) as known:
                for one in some:
                    await turns.give()
                    yield one, (await anext(known))[1]

    async def _texts(
        self, one: _Asked, read: StoredDocument | MillstreamError | None
    ) -> AsyncIterator[tuple[bytes, tuple[Piece, ...]]]:
        """Yield the beginning of each entry, and the pieces that follow."""
        try:
            document, found = await self._found(one, read)
        except MillstreamError as error:
            _raise_if_passing(error)
            yield b'{"error":%b}' % msgspec.json.encode(self._failed(one, error)), ()
            return
        turns = Turns()
        for leaf in found:
            await turns.give()
            if isinstance(leaf, str):
                said = {"id": one.id, "rev": leaf, "error": "not_found", "reason": "missing"}
                yield b'{"error":%b}' % msgspec.json.encode(said), ()
                continue
            assert document is not None, "a leaf is of a document"
            try:
                pieces = await self._text(one, document, leaf)
                yield within(b'{"ok":', pieces, b"}")
            except MillstreamError as error:
                _raise_if_passing(error)
                said = self._failed(one, error) | {"rev": leaf.rev}
                yield b'{"error":%b}' % msgspec.json.encode(said), ()

    async def _text(self, one: _Asked, document: StoredDocument, leaf: Leaf) -> list[Piece]:
        if not self._attachments and one.since is None:
            return pieces_of_text(one.id, document, leaf, self._shown)
        return await inline_pieces(
            self._documents, self._bucket, one.id, document, leaf, self._shown, one.since
        )

    async def _found(
        self, one: _Asked, document: StoredDocument | MillstreamError | None
    ) -> tuple[StoredDocument | None, Sequence[Any]]:
        if one.error is not None:
            raise one.error
        revs = None if one.rev is None else [checked_rev(one.rev)]
        if isinstance(document, MillstreamError):
            raise document
        if revs is None and (document is None or not document.exists):
            return document, ["undefined"]
        if document is None:
            return None, open_leaves(None, revs, latest=self._latest)
        await prepare(document)
        old = () if revs is None or self._latest else revs
        shown = await with_old(self._documents, self._bucket, one.id, document, old)
        assert shown is not None, "it is the same document"
        return shown, await worked(shown, open_leaves, shown, revs, latest=self._latest)

    @staticmethod
    def _failed(one: _Asked, error: MillstreamError) -> dict[str, Any]:
        return {"id": one.shown_id, "rev": one.rev, **body_of(error, _PATH)}

    async def parts(self, asked: DocumentsAsked, boundary: str) -> AsyncIterator[Piece]:
        """Yield the multipart answer."""
        async with aclosing(self._known(asked)) as known:
            async for one, read in known:
                try:
                    document, found = await self._found(one, read)
                except MillstreamError as error:
                    _raise_if_passing(error)
                    yield missing_part(boundary, msgspec.json.encode(self._failed(one, error)))
                    continue
                for leaf in found:
                    async for piece in parts_of(
                        self._documents, self._bucket, boundary, one.id, document, leaf,
                        self._shown, one.since,
                    ):  # fmt: skip
                        yield piece
        yield end(boundary)


def _raise_if_passing(error: MillstreamError) -> None:
    """Refuse the whole answer if a document cannot be read now.

    An entry with an error says that there is no such document: replicators pass it over for good.
    Only what does not pass by itself is told in the place of the document.
    """
    if isinstance(error, UnavailableError) and error.code not in _OF_ONE_DOCUMENT:
        raise error


_OF_ONE_DOCUMENT: Final = ("blob_missing",)
"""Passing errors that concern one document only: its attachment is missing here."""


def routes() -> list[web.RouteDef]:
    """Return the pages of this module."""
    return [
        web.post(DATABASE_PATH + "/_bulk_docs", _bulk_docs),
        web.post(DATABASE_PATH + "/_bulk_get", _bulk_get),
        web.post(DATABASE_PATH + "/_revs_diff", _revs_diff),
        web.post(DATABASE_PATH + "/_missing_revs", _missing_revs),
        web.post(DATABASE_PATH + "/_ensure_full_commit", _full_commit),
    ]
