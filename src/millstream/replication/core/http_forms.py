"""What a run asks, as requests of CouchDB's HTTP API, and answers read.

Invariants:
1. What a peer answers is checked: what has not the promised form is an error of the peer. A change
   that names its document, but not its revisions, is a row with a reason.
2. A database tells vectors only if it says so (`uuid` and `branches` in its information).
3. Bodies of documents are the bytes that the peer sent. An answer that has one too deep to be
   decoded is too large: it is asked for alone then, and passes as it is.
4. A document that is refused without an id or with a wrong one is a failure without a name.

Elsewhere: sockets and log-ins (`aio.peer`), attachments (`aio.attachments`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode

import msgspec

from millstream.documents.tokens import Vector, vector_from_json, vector_to_json
from millstream.errors import RemoteProtocolError, UnavailableError, UsageError
from millstream.replication.core.asking import (
    PASSING,
    TOO_LARGE,
    Changes,
    Diff,
    Difference,
    Document,
    Failure,
    Fetch,
    Fetched,
    Info,
    Page,
    Row,
    StoreRecords,
    Verify,
    Wanted,
    Write,
)
from millstream.replication.core.coverage import Record, record_of_json, record_to_json
from millstream.replication.core.places import Place, place_of

__all__ = [
    "Sent", "changes_request", "diff_request", "differences", "document_path", "failures",
    "fetch_request", "fetched", "info_of", "open_revs_path", "page_of", "records_of",
    "store_request", "vectors_of", "verify_request", "write_body",
]  # fmt: skip

_NO_BODY: Final = b""


class Sent(NamedTuple):
    """A request below a database's address."""

    method: str
    path: str
    body: bytes = _NO_BODY
    """JSON text; empty: none."""


def document_path(name: str) -> str:
    """Return the path of a document, `_design/` and `_local/` as CouchDB writes them."""
    for prefix in ("_design/", "_local/"):
        if name.startswith(prefix):
            return f"/{prefix}{quote(name.removeprefix(prefix), safe='')}"
    return "/" + quote(name, safe="")


def _decoded(data: bytes, form: Any, what: str) -> Any:
    try:
        return msgspec.json.decode(data, type=form)
    except RecursionError as error:
        raise UsageError(f"the peer's answer to {what} is too deep", code=TOO_LARGE) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RemoteProtocolError(
            f"the peer's answer to {what} is not as it should be: {error}"
        ) from error


# ---- databases


class _Info(msgspec.Struct):
    db_name: str = ""
    uuid: str = ""
    ancestors: tuple[str, ...] = ()
    branches: tuple[int, ...] | None = None
    purge_epoch: int = 0
    instance_start_time: str | int = "0"
    update_seq: Any = 0


def info_of(data: bytes, identity: str) -> Info:
    """Read what `GET /db` answers; `identity` names a database that has no uuid."""
    told: _Info = _decoded(data, _Info, "GET /db")
    started = str(told.instance_start_time)
    if not told.uuid or told.branches is None:
        return Info("", identity, instance_start_time=started, update_seq=told.update_seq)
    end = place_of(told.update_seq, tells_vectors=True).vector
    return Info(
        told.uuid, identity, told.ancestors, end, told.branches, told.purge_epoch, started,
        told.update_seq,
    )  # fmt: skip


# ---- changes


def changes_request(asked: Changes, *, timeout_ms: int) -> Sent:
    """Return the request for a page of changes."""
    feed = asked.feed
    query = {
        "style": feed.style,
        "limit": str(asked.limit),
        "since": asked.since if isinstance(asked.since, str) else _text(asked.since),
        "feed": "longpoll" if asked.wait_ms else "normal",
        "timeout": str(min(asked.wait_ms or timeout_ms, timeout_ms)),
    }
    if asked.puller:
        query["coverage"] = asked.puller
        if asked.takes_parts:
            query["coverage_parts"] = "true"
    body: Mapping[str, Any] | None = None
    if feed.doc_ids is not None:
        query["filter"], body = "_doc_ids", {"doc_ids": feed.doc_ids}
    elif feed.selector is not None:
        query["filter"], body = "_selector", {"selector": feed.selector}
    elif feed.filter:
        query["filter"] = feed.filter
        query |= {
            name: value if isinstance(value, str) else _text(value)
            for name, value in feed.query_params.items()
        }
    path = "/_changes?" + urlencode(query)
    return Sent("GET", path) if body is None else Sent("POST", path, msgspec.json.encode(body))


def _text(value: Any) -> str:
    return msgspec.json.encode(value).decode()


class _Rev(msgspec.Struct):
    rev: str


class _Row(msgspec.Struct):
    id: str
    changes: list[_Rev]


class _Page(msgspec.Struct):
    results: list[_Row]
    last_seq: str | int | list[Any]
    pending: int | None = None
    complete: bool = True
    coverage: list[Any] = msgspec.field(default_factory=list)


class _LoosePage(_Page):
    results: list[Any]


def page_of(data: bytes, *, tells_vectors: bool) -> Page:
    """Read what `_changes` answers.

    Raises:
        RemoteProtocolError: it is no such answer, or a change does not name its document.
    """
    try:
        told: _Page = _decoded(data, _Page, "_changes")
    except RemoteProtocolError:
        told = _decoded(data, _LoosePage, "_changes")
        found = [_loose_row(row) for row in told.results]
    else:
        found = [_row(row.id, [each.rev for each in row.changes]) for row in told.results]
    rows = {row.name: row for row in found}
    place: Place = place_of(told.last_seq, tells_vectors=tells_vectors)
    return Page(
        tuple(rows.values()), place, told.pending, told.complete, records_of(told.coverage)
    )


def _row(name: str, revs: Sequence[str]) -> Row:
    return Row(name, tuple(revs), "" if revs else "its change names no revision")


def _loose_row(row: Any) -> Row:
    """Return the row of a change of which only the id may be as it should be."""
    form = row if isinstance(row, dict) else {}
    name, changes = form.get("id"), form.get("changes")
    if not isinstance(name, str):
        where = f" at sequence {_text(form['seq'])}" if "seq" in form else ""
        raise RemoteProtocolError(f"the peer's change{where} does not name its document")
    listed = changes if isinstance(changes, list) else []
    revs = [each.get("rev") if isinstance(each, dict) else None for each in listed]
    known = [rev for rev in revs if isinstance(rev, str)]
    if known and len(known) == len(revs):
        return _row(name, known)
    return Row(name, tuple(known), "its change does not name all its revisions")


# ---- documents


def diff_request(asked: Diff) -> Sent:
    """Return the request for what a target lacks."""
    return Sent("POST", "/_revs_diff", msgspec.json.encode(asked.revs))


class _Difference(msgspec.Struct):
    missing: tuple[str, ...] = ()
    possible_ancestors: tuple[str, ...] = ()


def differences(data: bytes) -> dict[str, Difference]:
    """Read what `_revs_diff` answers."""
    told: dict[str, _Difference] = _decoded(data, dict[str, _Difference], "_revs_diff")
    return {name: Difference(each.missing, each.possible_ancestors) for name, each in told.items()}


def fetch_request(asked: Fetch) -> Sent:
    """Return the request for documents, one element for each revision that is wanted."""
    documents = [
        {"id": wanted.name, "rev": rev, "atts_since": list(wanted.known)}
        for wanted in asked.wanted
        for rev in wanted.revs
    ]
    body = {"revs": True, "latest": True, "attachments": False, "docs": documents}
    path = "/_bulk_get?revs=true&latest=true&attachments=false"
    return Sent("POST", path, msgspec.json.encode(body))


class _Missing(msgspec.Struct):
    rev: str | None = None
    error: str | None = None


class _Got(msgspec.Struct):
    ok: msgspec.Raw = msgspec.Raw()
    error: _Missing | None = None


class _Result(msgspec.Struct):
    id: str
    docs: list[_Got]


class _Results(msgspec.Struct):
    results: list[_Result]


class _Head(msgspec.Struct):
    rev: str = msgspec.field(name="_rev")
    attachments: dict[str, Any] = msgspec.field(name="_attachments", default_factory=dict)


def fetched(data: bytes) -> Fetched:
    """Read what `_bulk_get` answers; each revision once.

    Raises:
        UnavailableError: the source cannot say a document now; it is not known to be missing.
    """
    told: _Results = _decoded(data, _Results, "_bulk_get")
    documents: dict[tuple[str, str], Document] = {}
    missing: list[tuple[str, str]] = []
    for result in told.results:
        for got in result.docs:
            if got.error is not None:
                if got.error.error in PASSING:
                    raise UnavailableError(
                        f"the source cannot say {result.id!r} now: {got.error.error}",
                        code=got.error.error,
                    )
                missing.append((result.id, got.error.rev or ""))
                continue
            body = bytes(got.ok)
            head: _Head = _decoded(body, _Head, "_bulk_get")
            documents[result.id, head.rev] = Document(
                result.id, head.rev, body, bool(head.attachments)
            )
    return Fetched(tuple(documents.values()), tuple(missing))


def open_revs_path(wanted: Wanted) -> str:
    """Return the path of revisions of a document with their attachments."""
    query = {"revs": "true", "latest": "true", "open_revs": _text(list(wanted.revs))}
    if wanted.known:
        query["atts_since"] = _text(list(wanted.known))
    return document_path(wanted.name) + "?" + urlencode(query)


def write_body(asked: Write) -> bytes:
    """Return the body of `_bulk_docs` for documents as another database has them."""
    return b'{"new_edits":false,"docs":[%b]}' % b",".join(each.body for each in asked.documents)


class _Failed(msgspec.Struct):
    id: Any = None
    rev: Any = None
    error: Any = None
    reason: Any = None


def failures(data: bytes) -> tuple[Failure, ...]:
    """Read what `_bulk_docs` answers: what went well is left out or has no error."""
    told: list[_Failed] = _decoded(data, list[_Failed], "_bulk_docs")
    return tuple(
        Failure(_said(e.id), _said(e.rev), _said(e.error), _said(e.reason))
        for e in told
        if e.error
    )


def _said(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else _text(value)


# ---- records about others


def records_of(forms: Sequence[Any]) -> tuple[Record, ...]:
    """Read records; invalid ones are left out."""
    found = map(record_of_json, forms)
    return tuple(record for record in found if record is not None)


def store_request(asked: StoreRecords) -> Sent:
    """Return the request that stores and removes records."""
    body = {
        "records": [record_to_json(record) for record in asked.records],
        "removed": list(asked.removed),
    }
    return Sent("POST", "/_coverage", msgspec.json.encode(body))


def verify_request(asked: Verify) -> Sent:
    """Return the request that has a database confirm what others have of it."""
    claims = [
        {
            "log": claim.log,
            "ckpt": claim.ckpt,
            "vec": None if claim.place.vector is None else vector_to_json(claim.place.vector),
            "content": claim.looks_inside,
        }
        for claim in asked.claims
    ]
    return Sent("POST", "/_coverage/verify", msgspec.json.encode({"claims": claims}))


class _Vectors(msgspec.Struct):
    vectors: list[dict[str, Any] | None]


def vectors_of(data: bytes, count: int) -> list[Vector | None]:
    """Read which vectors a database confirms."""
    told: _Vectors = _decoded(data, _Vectors, "_coverage/verify")
    if len(told.vectors) != count:
        raise RemoteProtocolError("the peer confirms another number of claims than it was asked")
    try:
        return [None if each is None else vector_from_json(each) for each in told.vectors]
    except ValueError as error:
        raise RemoteProtocolError(f"the peer confirms an invalid vector: {error}") from error
