"""Users as documents: `/_users`, as CouchDB's clients read and write them.

    GET                 /_users                         how many there are
    GET, POST           /_users/_all_docs               all of them
    POST                /_users                         one, whose id stands in it
    GET, PUT, DELETE    /_users/org.couchdb.user:NAME   one

Invariants:
1. It is a window on the record of users that all listeners ask: there is no second one, no history
   and no feed.
2. Administrators do everything. Whoever logged in by password reads the own document, changes the
   own password, and may go; others do not learn whether there is somebody of a name. The bearer
   of a token has no document, whatever its name.
3. A change is made to the record that was read, or is a conflict.

Elsewhere: the form of documents (`gateway.core.user_documents`), the record (`access.users`), the
same in words of its own (`user_pages`).
Source: CouchDB's authentication database; what pouchdb-authentication asks for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final, NoReturn
from urllib.parse import quote

from aiohttp import web

from millstream.access.users import User
from millstream.errors import AccessError, ConditionError, UsageError
from millstream.gateway.aio.answers import NODE_API, USER, answer, raw_answer, read_body, require
from millstream.gateway.aio.listing import asked_list
from millstream.gateway.aio.streaming import as_they_come, stream
from millstream.gateway.core.documents import (
    as_etag,
    document_pieces,
    named_rev,
    names_etag,
)
from millstream.gateway.core.listing import list_documents
from millstream.gateway.core.user_documents import (
    USER_PREFIX,
    SentUser,
    gone_rev,
    groups_of,
    listed,
    parse_user,
    rev_of,
    rights_of,
    user_name,
)

__all__ = ["USERS_DATABASE", "USER_DOCUMENT_BYTES_MAX", "routes"]

USERS_DATABASE: Final = "_users"
USER_DOCUMENT_BYTES_MAX: Final = 64 * 1024
_ID: Final = "id"
_CONFLICT: Final = "Document update conflict."


# -- who may


def _is_admin(request: web.Request) -> bool:
    user = request[USER]
    return request.app[NODE_API].users.is_empty or (user is not None and user.is_admin)


def _is_own(request: web.Request, name: str | None) -> bool:
    """Whether a document is that of the requesting user. Clients without login are refused."""
    user = request[USER]
    if user is None:
        raise AccessError("log in first", code="unauthorized")
    return bool(user.verifiers) and user.name == name


def _may_change(request: web.Request, name: str | None) -> None:
    if not _is_admin(request) and not _is_own(request, name):
        raise ConditionError("missing", code="not_found")


# -- reading


async def _info(request: web.Request) -> web.Response:
    require(request, "admin")
    return answer(
        {
            "db_name": USERS_DATABASE,
            "doc_count": len(request.app[NODE_API].users.names),
            "doc_del_count": 0,
            "update_seq": "0",
            "purge_seq": "0",
            "instance_start_time": "0",
            "compact_running": False,
        }
    )


async def _all_docs(request: web.Request) -> web.StreamResponse:
    require(request, "admin")
    query = await asked_list(request)
    users = request.app[NODE_API].users.all()
    documents = [listed(user) for user in users.values()]
    documents.sort(key=lambda one: one.id.encode())
    return await stream(request, as_they_come(list_documents(documents, query)), {})


async def _get(request: web.Request) -> web.Response:
    name = user_name(request.match_info[_ID])
    may = _is_admin(request) or _is_own(request, name)
    user = request.app[NODE_API].users.all().get(name or "") if may else None
    if user is None:
        raise ConditionError("missing", code="not_found")
    document = listed(user)
    if request.query.get("rev", document.rev) != document.rev:
        raise ConditionError("missing", code="not_found")
    etag = as_etag(document.rev)
    if names_etag(request.headers.get("If-None-Match"), etag):
        return web.Response(status=304, headers={"ETag": etag})
    text = b"".join([*document_pieces(*document), b"\n"])
    return raw_answer(text, headers={"ETag": etag})


# -- writing


async def _put(request: web.Request) -> web.Response:
    doc_id = request.match_info.get(_ID)
    if doc_id is not None:
        _may_change(request, user_name(doc_id))
    elif request[USER] is None and not _is_admin(request):
        raise AccessError("log in first", code="unauthorized")
    if request.query.get("new_edits", "true") != "true":
        raise UsageError("users have no revisions of others", code="not_supported")
    name, sent = parse_user(await read_body(request, USER_DOCUMENT_BYTES_MAX), doc_id)
    if doc_id is None:
        _may_change(request, name)
    rev = named_rev(request.query, request.headers.get("If-Match"), sent.rev)
    if sent.is_deleted:
        return await _remove(request, name, rev)
    api = request.app[NODE_API]
    change = partial(
        api.users.change, name, password=sent.password, rights=rights_of(sent.roles),
        groups=groups_of(sent.roles), expect=_expected(sent, rev, is_admin=_is_admin(request)),
    )  # fmt: skip
    user = await asyncio.to_thread(change)
    api.drop_user(user.name)
    return _written(listed(user).id, rev_of(user), 201)


def _expected(sent: SentUser, rev: str | None, *, is_admin: bool) -> Callable[[User | None], None]:
    """Return what refuses a change of a record as it is then."""

    def expect(present: User | None) -> None:
        if rev != (rev_of(present) if present is not None else None):
            raise ConditionError(_CONFLICT, code="conflict")
        if not is_admin and (present is None or sent.roles != sorted(present.roles)):
            raise AccessError("Only _admin may edit roles", code="forbidden")
        if present is None and sent.password is None:
            raise UsageError("a new user needs a password", code="bad_password")

    return expect


async def _delete(request: web.Request) -> web.Response:
    name = user_name(request.match_info[_ID])
    _may_change(request, name)
    if name is None:
        raise ConditionError("missing", code="not_found")
    return await _remove(request, name, named_rev(request.query, request.headers.get("If-Match")))


async def _remove(request: web.Request, name: str, rev: str | None) -> web.Response:
    api = request.app[NODE_API]

    def expect(present: User | None) -> None:
        if present is not None and rev != rev_of(present):
            raise ConditionError(_CONFLICT, code="conflict")

    if not await asyncio.to_thread(api.users.delete, name, expect):
        raise ConditionError("missing", code="not_found")
    api.drop_user(name)
    assert rev is not None, "it was that of a record"
    return _written(USER_PREFIX + name, gone_rev(rev), 200)


def _written(doc_id: str, rev: str, status: int) -> web.Response:
    headers = {"ETag": as_etag(rev)}
    if status == 201:
        headers["Location"] = f"/{USERS_DATABASE}/{quote(doc_id, safe='')}"
    return answer({"ok": True, "id": doc_id, "rev": rev}, status=status, headers=headers)


# -- what is not there


async def _create(request: web.Request) -> NoReturn:
    require(request, "admin")
    raise ConditionError(
        "The database could not be created, the file already exists.", code="file_exists"
    )


async def _refuse(request: web.Request) -> NoReturn:
    require(request, "admin")
    raise UsageError(
        f"{USERS_DATABASE} has documents of users, {USERS_DATABASE}/_all_docs, and nothing else",
        code="not_supported",
    )


def routes() -> list[web.RouteDef]:
    """Return the pages of this module; they come before those of databases."""
    whole = f"/{USERS_DATABASE}"
    one = whole + "/{id:[^_/][^/]*}"
    found = [web.get(whole + "/_all_docs", _all_docs), web.post(whole + "/_all_docs", _all_docs)]
    for path in (whole, whole + "/"):
        found += [
            web.get(path, _info), web.put(path, _create), web.post(path, _put),
            web.delete(path, _refuse),
        ]  # fmt: skip
    found += [web.get(one, _get), web.put(one, _put), web.delete(one, _delete)]
    return [*found, web.route("*", whole + "/{rest:_.*}", _refuse)]
