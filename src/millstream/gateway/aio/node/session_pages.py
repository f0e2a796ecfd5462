"""Logging in and out over HTTP: `/_session`.

Invariants:
1. A cookie is handed out only for a name and password that were just checked. Who shows a token
   is told who that is, and gets none: it shows the token each time.
2. A cookie that was logged out with is good for nothing.
3. Roles are shown as CouchDB's clients expect them (`gateway.core.user_documents`).

Elsewhere: the cookie (`gateway.core.cookies`).
Source: CouchDB's `/_session`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qsl

from aiohttp import web

from millstream.errors import AccessError, UsageError
from millstream.gateway.aio.answers import (
    NODE_API,
    SIGNER,
    TOKENS,
    USER,
    answer,
    read_body,
    read_object,
)
from millstream.gateway.core.cookies import COOKIE_NAME, SESSION_SECONDS
from millstream.gateway.core.user_documents import shown_roles

__all__ = ["FORM_BYTES_MAX", "routes"]

FORM_BYTES_MAX: Final = 4096
"""Body of a form that logs in."""


async def _show(request: web.Request) -> web.Response:
    user = request[USER]
    is_open = request.app[NODE_API].users.is_empty
    context: dict[str, Any] = {"name": None, "roles": ["_admin"] if is_open else []}
    tokens = request.app[TOKENS]
    handlers = ["cookie", "default"] + ["jwt"] * (tokens is not None and tokens.is_taking)
    info: dict[str, Any] = {"authentication_handlers": handlers}
    if user is not None:
        context = {"name": user.name, "roles": shown_roles(user.roles)}
        info["authenticated"] = _way(request)
    cookie = request.cookies.get(COOKIE_NAME, "")
    by_cookie = user is not None and _way(request) == "cookie"
    token = {"csrf": request.app[SIGNER].csrf_token(cookie)} if by_cookie else {}
    return answer({"ok": True, "userCtx": context, "info": info, **token})


def _way(request: web.Request) -> str:
    """Return how a client showed who it is, as CouchDB calls it."""
    scheme = request.headers.get("Authorization", "").partition(" ")[0].lower()
    return {"bearer": "jwt", "basic": "default"}.get(scheme, "cookie")


async def _sent(request: web.Request) -> Mapping[str, object]:
    """Return what was sent, as JSON or, as CouchDB takes it as well, as a form."""
    if request.content_type != "application/x-www-form-urlencoded":
        return await read_object(request)
    try:
        return dict(parse_qsl((await read_body(request, FORM_BYTES_MAX)).decode()))
    except ValueError as error:
        raise UsageError("the form cannot be read", code="bad_request") from error


def _name_in(content: Mapping[str, object]) -> object:
    """Return the name of who logs in; CouchDB takes it as `username`, too."""
    names = [content[member] for member in ("name", "username") if content.get(member) is not None]
    if len(names) == 2 and names[0] != names[1]:
        raise UsageError("request body contains different usernames", code="bad_request")
    return names[0] if names else None


async def _log_in(request: web.Request) -> web.Response:
    content = await _sent(request)
    name, password = _name_in(content), content.get("password")
    shown = request[USER]
    if name is None and password is None and shown is not None and _way(request) == "jwt":
        return answer({"ok": True, "name": shown.name, "roles": shown_roles(shown.roles)})
    if not isinstance(name, str) or not isinstance(password, str):
        raise UsageError('the body must hold "name" and "password"')
    users = request.app[NODE_API].users
    source = request.remote or "?"
    user = await users.log_in(name, password, source)
    if user is None:
        raise AccessError("wrong user name or password", code="unauthorized")
    response = answer({"ok": True, "name": user.name, "roles": shown_roles(user.roles)})
    response.set_cookie(
        COOKIE_NAME,
        request.app[SIGNER].make(user),
        max_age=SESSION_SECONDS,
        path="/",
        secure=request.secure,
        httponly=True,
        samesite="Strict",
    )
    return response


async def _log_out(request: web.Request) -> web.Response:
    shown = request.cookies.get(COOKIE_NAME)
    if shown:
        request.app[SIGNER].revoke(shown, request.app[NODE_API].users.get)
    response = answer({"ok": True})
    response.del_cookie(COOKIE_NAME, path="/")
    return response


def routes() -> list[web.RouteDef]:
    """Return the pages of this module."""
    return [
        web.get("/_session", _show),
        web.post("/_session", _log_in),
        web.delete("/_session", _log_out),
    ]
