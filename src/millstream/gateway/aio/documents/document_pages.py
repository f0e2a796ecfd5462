"""Documents over HTTP: `/DB/ID` read, written, deleted and copied.

Invariants:
1. Whoever reads needs the right `read`, who writes `write`; for design documents `design` will do
   for reading, and is wanted for writing.
2. 201 and 200 mean durable, 202 (`batch=ok`) accepted.
3. Who names a revision, or asks for several, is shown only what cannot get lost any more.

Elsewhere: many documents at once (`bulk_pages`), attachments by themselves (`attachment_pages`),
options (`gateway.core.document_options`).
Source: CouchDB's document API.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Iterable
from typing import Final
from urllib.parse import quote, unquote

import msgspec
from aiohttp import web

from millstream.documents.reading import (
    PLAIN,
    Piece,
    Shown,
    newer_attachments,
    open_leaves,
    pieces_of_text,
    text_of,
    within,
)
from millstream.documents.revisions import checked_rev
from millstream.documents.sent import Sent, checked_id
from millstream.documents.stored import StoredDocument
from millstream.documents.tree import Leaf
from millstream.errors import ConditionError, UsageError
from millstream.gateway.aio.answers import (
    DATABASE,
    DATABASE_PATH,
    NODE_API,
    answer,
    raw_answer,
    read_body,
    require,
)
from millstream.gateway.aio.documents.attaching import keep, keep_inline
from millstream.gateway.aio.documents.documents_in import read_related
from millstream.gateway.aio.documents.documents_out import (
    inline_pieces,
    mixed,
    pieces_of,
    related,
    send_attachment_pieces,
)
from millstream.gateway.aio.documents.old_contents import with_old
from millstream.gateway.aio.documents.writing import Edit, Stored, write_one
from millstream.gateway.aio.parsing import parsed, prepare, worked
from millstream.gateway.aio.streaming import WHOLE_BYTES_MAX, stream
from millstream.gateway.core.document_options import (
    DocumentOptions,
    parse_options,
    prefers_json,
)
from millstream.gateway.core.documents import as_etag, is_batch, named_rev, names_etag
from millstream.runtime.pace import Turns

__all__ = [
    "DOCUMENT_BYTES_MAX", "DOCUMENT_ID", "DOCUMENT_PATHS", "document_of", "may_read", "may_write",
    "routes", "written",
]  # fmt: skip

DOCUMENT_BYTES_MAX: Final = 64 * 1024 * 1024
"""Body of a request with one document, attachments in it included."""
DOCUMENT_ID: Final = "id"
DOCUMENT_PATHS: Final = (
    DATABASE_PATH + "/{id:_design(?:/|%2F)[^/]+}",
    DATABASE_PATH + "/{id:[^_/][^/]*}",
)
"""Addresses of documents; slashes of ids are percent-encoded, but for that of `_design/`."""
_DESIGN: Final = "_design/"
_DELETED: Final = b"{}"


def document_of(request: web.Request) -> tuple[str, str]:
    """Return (database, id) that an address speaks of."""
    return request.match_info[DATABASE], checked_id(request.match_info[DOCUMENT_ID])


def may_read(request: web.Request, bucket: str, doc_id: str) -> None:
    """Refuse who may not read a document; raises as `require`."""
    require(request, "read", bucket, instead="design" if doc_id.startswith(_DESIGN) else None)


def may_write(request: web.Request, bucket: str, doc_id: str) -> None:
    """Refuse who may not write a document; raises as `require`."""
    require(request, "design" if doc_id.startswith(_DESIGN) else "write", bucket)


# -- reading


async def _get(request: web.Request) -> web.StreamResponse:
    bucket, doc_id = document_of(request)
    may_read(request, bucket, doc_id)
    options = parse_options(request.query)
    documents = request.app[NODE_API].documents
    revs = [options.rev] if options.rev is not None else options.open_revs
    lists_all = options.shown.revs_info
    is_durable = revs is not None or lists_all
    found = await documents.read(bucket, doc_id, is_durable=is_durable)
    if found is not None and is_durable:
        await prepare(found)
        old = () if options.latest or revs is None else revs
        found = await with_old(documents, bucket, doc_id, found, old, lists_all=lists_all)
    if options.local_seq and found is not None:
        options = options._replace(shown=options.shown._replace(local_seq=found.seqno))
    if options.open_revs is not None:
        return await _several(request, bucket, doc_id, found, options)
    leaf = _asked_leaf(found, options)
    assert found is not None, "it has the leaf"
    headers = {} if _says_more(options.shown) else {"ETag": as_etag(leaf.rev)}
    if headers and names_etag(request.headers.get("If-None-Match"), headers["ETag"]):
        return web.Response(status=304, headers=headers)
    await prepare(found)
    if not options.attachments or not found.contents[leaf.rev].attachments:
        pieces = await worked(found, pieces_of_text, doc_id, found, leaf, options.shown)
        if sum(map(len, pieces)) < WHOLE_BYTES_MAX:
            return raw_answer(b"".join((*pieces, b"\n")), headers=headers)
        return await stream(request, _each((*pieces, b"\n")), headers)
    if "multipart/" not in request.headers.get("Accept", "") or prefers_json(
        request.headers.get("Accept")
    ):
        pieces = await inline_pieces(
            documents, bucket, doc_id, found, leaf, options.shown, options.atts_since
        )
        return await stream(request, _each((*pieces, b"\n")), headers)
    boundary = secrets.token_hex(16)
    wanted = newer_attachments(found, leaf.rev, options.atts_since)
    response = web.StreamResponse(
        headers=headers | {"Content-Type": f'multipart/related; boundary="{boundary}"'}
    )
    parts = related(documents, bucket, boundary, doc_id, found, leaf, options.shown, wanted)
    return await send_attachment_pieces(request, response, parts)


async def _each(pieces: Iterable[Piece]) -> AsyncIterator[Piece]:
    for piece in pieces:
        yield piece


def _says_more(shown: Shown) -> bool:
    """Return whether an answer changes with other leaves, too: its revision is no tag for it."""
    return shown.revs_info or shown.conflicts or shown.deleted_conflicts or shown.local_seq > 0


def _asked_leaf(found: StoredDocument | None, options: DocumentOptions) -> Leaf:
    """Return the leaf that is asked for.

    Raises:
        ConditionError: `not_found`: missing, or deleted.
    """
    if found is None or not found.exists:
        raise ConditionError("missing", code="not_found")
    if options.rev is not None:
        [leaf, *_] = open_leaves(found, [options.rev], latest=options.latest)
        if isinstance(leaf, str):
            raise ConditionError("missing", code="not_found")
        return leaf
    winner = found.winner
    if winner.is_deleted:
        raise ConditionError("deleted", code="not_found")
    return winner


async def _several(
    request: web.Request,
    bucket: str,
    doc_id: str,
    found: StoredDocument | None,
    options: DocumentOptions,
) -> web.StreamResponse:
    """Answer with the revisions that `open_revs` names."""
    documents = request.app[NODE_API].documents
    if (found is None or not found.exists) and not options.open_revs:
        raise ConditionError("missing", code="not_found")
    asked = options.open_revs or None
    if found is None:
        leaves = open_leaves(None, asked, latest=options.latest)
    else:
        await prepare(found)
        leaves = await worked(found, open_leaves, found, asked, latest=options.latest)
    if not prefers_json(request.headers.get("Accept")):
        boundary = secrets.token_hex(16)
        response = web.StreamResponse(
            headers={"Content-Type": f'multipart/mixed; boundary="{boundary}"'}
        )
        pieces = mixed(
            documents, bucket, boundary, doc_id, found, leaves, options.shown, options.atts_since
        )
        return await send_attachment_pieces(request, response, pieces)

    async def texts() -> AsyncIterator[Piece]:
        before, turns = b"[", Turns()
        for one in leaves:
            await turns.give()
            if isinstance(one, str):
                yield before + msgspec.json.encode({"missing": one})
            else:
                assert found is not None, "it has the leaf"
                if options.attachments:
                    pieces = await inline_pieces(
                        documents, bucket, doc_id, found, one, options.shown, options.atts_since
                    )
                else:
                    pieces = pieces_of_text(doc_id, found, one, options.shown)
                first, more = within(before + b'{"ok":', pieces, b"}")
                yield first
                for piece in more:
                    yield piece
            before = b","
        yield b"]\n" if leaves else b"[]\n"

    return await stream(request, texts(), {})


# -- writing


async def _put(request: web.Request) -> web.Response:
    bucket, doc_id = document_of(request)
    may_write(request, bucket, doc_id)
    edit = await _edit_of(request, bucket, doc_id)
    return await _write(request, bucket, edit, 201)


async def _edit_of(request: web.Request, bucket: str, doc_id: str) -> Edit:
    is_replicated = request.query.get("new_edits", "true") == "false"
    if request.content_type == "multipart/related":
        sent, kept = await read_related(
            request, bucket, DOCUMENT_BYTES_MAX, is_replicated=is_replicated
        )
    else:
        sent, kept = await parsed(await read_body(request, DOCUMENT_BYTES_MAX)), {}
        if sent.attachments:
            kept = await keep_inline(
                request.app[NODE_API].documents,
                bucket,
                sent.attachments,
                is_replicated=is_replicated,
            )
    if sent.id is not None:
        checked_id(sent.id)  # another one than that of the address says nothing, as in CouchDB
    if not is_replicated:
        rev = named_rev(request.query, request.headers.get("If-Match"), sent.rev)
        sent = sent._replace(rev=rev)
    return Edit(doc_id, sent, kept, is_replicated)


async def _post(request: web.Request) -> web.Response:
    """Store a document whose id is in its body, or is generated here."""
    bucket = request.match_info[DATABASE]
    if request.content_type != "application/json":
        raise UsageError("Content-Type must be application/json", code="bad_content_type")
    sent = await parsed(await read_body(request, DOCUMENT_BYTES_MAX))
    doc_id = checked_id(secrets.token_hex(16) if sent.id is None else sent.id)
    may_write(request, bucket, doc_id)
    kept = {}
    is_replicated = request.query.get("new_edits", "true") == "false"
    if sent.attachments:
        kept = await keep_inline(
            request.app[NODE_API].documents, bucket, sent.attachments, is_replicated=is_replicated
        )
    return await _write(request, bucket, Edit(doc_id, sent, kept, is_replicated), 201)


async def _delete(request: web.Request) -> web.Response:
    bucket, doc_id = document_of(request)
    may_write(request, bucket, doc_id)
    rev = named_rev(request.query, request.headers.get("If-Match"))
    sent = Sent(doc_id, rev, True, None, None, _DELETED, {})
    return await _write(request, bucket, Edit(doc_id, sent, deletes=True), 200)


async def _copy(request: web.Request) -> web.Response:
    bucket, doc_id = document_of(request)
    may_read(request, bucket, doc_id)
    target, target_rev = _destination(request.headers.get("Destination"))
    may_write(request, bucket, target)
    options = parse_options(request.query)
    found = await request.app[NODE_API].documents.read(bucket, doc_id)
    leaf = _asked_leaf(found, options)
    assert found is not None, "it has the leaf"
    await prepare(found)
    content = found.contents[leaf.rev]
    sent = await parsed(text_of(target, found, leaf, PLAIN))
    sent = sent._replace(rev=target_rev, path=None)
    documents = request.app[NODE_API].documents
    kept = dict(content.attachments)
    for name, one in content.attachments.items():
        if not one.sha256:  # the value of a document that is no JSON
            pieces = pieces_of(documents, bucket, found, leaf.rev, name, is_plain=True)
            kept[name] = await keep(documents, bucket, pieces, one.content_type)
    return await _write(request, bucket, Edit(target, sent, kept), 201)


def _destination(header: str | None) -> tuple[str, str | None]:
    """Return (id, revision that is replaced) of a COPY's Destination."""
    if not header:
        raise UsageError("Destination header is mandatory for COPY.", code="bad_request")
    if header.strip().lower().startswith(("http://", "https://")):
        raise UsageError("Destination URL must be relative.", code="bad_request")
    target, _, option = header.strip().partition("?")
    if option and not option.startswith("rev="):
        raise UsageError(f"Destination {header!r}: only ?rev= may follow", code="bad_request")
    rev = checked_rev(unquote(option.removeprefix("rev="))) if option else None
    return checked_id(unquote(target).lstrip("/")), rev


async def _write(request: web.Request, bucket: str, edit: Edit, status: int) -> web.Response:
    is_later = is_batch(request.query)
    done = await write_one(request, bucket, edit, is_durable=not is_later)
    return written(bucket, edit.doc_id, done, 202 if is_later else status)


def written(bucket: str, doc_id: str, done: Stored, status: int) -> web.Response:
    """Return the answer to a change that was made."""
    headers = {"ETag": as_etag(done.rev)}
    if status in (201, 202):
        path = "/".join(quote(part, safe="") for part in doc_id.split("/", 1))
        if not doc_id.startswith(_DESIGN):
            path = quote(doc_id, safe="")
        headers["Location"] = f"/{quote(bucket, safe='')}/{path}"
    return answer({"ok": True, "id": doc_id, "rev": done.rev}, status=status, headers=headers)


def routes() -> list[web.RouteDef]:
    """Return the pages of this module; they come after those of more special addresses."""
    whole = (DATABASE_PATH, DATABASE_PATH + "/")
    found = [web.post(path, _post) for path in whole]
    for path in DOCUMENT_PATHS:
        found += [
            web.get(path, _get), web.put(path, _put), web.delete(path, _delete),
            web.route("COPY", path, _copy),
        ]  # fmt: skip
    return found
