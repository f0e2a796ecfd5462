"""What happens to every request before its page: origin, who it is from, errors as JSON.

Invariants:
1. A wrong password, or a token that is not believed, is answered 401 before any page runs.
2. A password check runs in a thread: it is slow on purpose.
3. A request with a log-in cookie that carries a body must say that it is of a type that a form
   of another site cannot send.
4. A change of the node itself (below `/_millstream/`) that comes with a log-in cookie must show
   the token that belongs to the cookie (`GET /_session`).
5. A page of another site sees an answer only if the operator named that site.

Elsewhere: decisions (`gateway.core`), rights of single pages (`gateway.aio.answers.require`).
"""

from __future__ import annotations

import logging
from base64 import b64decode
from binascii import Error as Base64Error
from typing import Final
from urllib.parse import unquote_to_bytes

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from millstream.access.records import bearer_user
from millstream.access.users import User, UserStore
from millstream.errors import AccessError, MillstreamError, UsageError, http_status_of
from millstream.gateway.aio.access_log import log_access
from millstream.gateway.aio.answers import (
    GUESTS,
    NODE_API,
    SIGNER,
    STILL,
    TOKENS,
    USER,
    answer,
    is_bearer,
    loggable,
    page_of,
)
from millstream.gateway.aio.room import hold_in_room
from millstream.gateway.aio.streaming import forget_frames
from millstream.gateway.core.cookies import COOKIE_NAME
from millstream.gateway.core.cors import answer_headers, is_allowed, preflight_headers
from millstream.gateway.core.errors import (
    body_of,
    body_of_status,
    refused_name,
)
from millstream.gateway.core.origins import SAFE_METHODS, refuse_foreign_page

__all__ = ["MIDDLEWARES", "add_shared_headers", "basic_credentials"]

_LOG = logging.getLogger(__name__)
_FORM_TYPES: Final = frozenset(
    {"application/x-www-form-urlencoded", "multipart/form-data", "text/plain", ""}
)
"""Content types that a page of another site can make a browser send without a preflight request.
"""
CSRF_HEADER: Final = "X-CSRF-Token"
_SCHEMES: Final = ("basic", "bearer")


@web.middleware
async def _readable(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse an address that is no text: what it names would be taken for something else."""
    target = request.raw_path
    try:
        if "%" in target or not target.isascii():
            unquote_to_bytes(target).decode()
    except UnicodeError as error:
        raise UsageError("the address is not valid UTF-8", code="bad_request") from error
    return await handler(request)


@web.middleware
async def _errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except MillstreamError as error:
        status = http_status_of(error)
        headers = {"WWW-Authenticate": _challenge(request)} if status == 401 else None
        if status >= 500:
            _LOG.warning("%s %s: %s", request.method, page_of(request), loggable(error))
        return answer(body_of(error, request.path), status=status, headers=headers)
    except web.HTTPException as error:
        allowed = error.headers.get("Allow")
        headers = {"Allow": allowed} if allowed else None
        if error.status == 404 and (body := refused_name(request.method, request.path)):
            return answer(body, status=400)
        return answer(body_of_status(error.status), status=error.status, headers=headers)
    except web.RequestPayloadError as error:
        return answer(body_of(_unreadable(error), request.path), status=400)
    except ConnectionError as error:
        if request.transport is not None and not request.transport.is_closing():
            raise  # somebody else's connection
        forget_frames(error)
        _LOG.debug("%s %s: the client has gone", request.method, request.path)
        return answer(body_of_status(400), status=400)
    except Exception:  # noqa: BLE001 - the top of a request: log once, tell nothing
        _LOG.exception("%s %s failed", request.method, page_of(request))
        return answer(body_of_status(500), status=500)


def _unreadable(error: Exception) -> UsageError:
    return UsageError(f"the body cannot be read: {error}", code="bad_request")


@web.middleware
async def _share(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Allow the pages of the sites that the operator named to read answers."""
    origins, origin = request.app[NODE_API].origins, request.headers.get("Origin")
    wanted = request.headers.get("Access-Control-Request-Method")
    if request.method == "OPTIONS" and wanted is not None:
        headers = preflight_headers(origin, wanted, origins)
        return web.Response(status=403 if headers is None else 204, headers=headers)
    return await handler(request)


async def add_shared_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Say in an answer which pages may see it, also where it leaves in pieces.

    And that nobody may use it again without asking, unless its page says something else. Browsers
    take it for nothing but what its Content-Type says, and run nothing in it: users chose its
    bytes.
    """
    response.headers.setdefault("X-Content-Type-Options", "nosniff")
    response.headers.setdefault("Content-Security-Policy", "sandbox")
    response.headers.setdefault("Cache-Control", "must-revalidate")
    shared = answer_headers(request.headers.get("Origin"), request.app[NODE_API].origins)
    if "Vary" in shared and (page := response.headers.get("Vary")):
        shared["Vary"] += f", {page}"
    response.headers.update(shared)


@web.middleware
async def _who(request: web.Request, handler: Handler) -> web.StreamResponse:
    api, origin = request.app[NODE_API], request.headers.get("Origin")
    refuse_foreign_page(
        request.method,
        request.headers.get("Host", ""),
        None if is_allowed(origin, api.origins) else origin,
        hosts=api.hosts,
        has_users=not api.users.is_empty,
    )
    request[USER], request[STILL] = None, lambda: api.users.is_empty
    if not api.users.is_empty:
        request[USER] = user = await _user_of(request, api.users)
        if user is not None and GUESTS in request.app:
            request.app[GUESTS].recognise(request.protocol, user.name)  # type: ignore[arg-type]
    return await handler(request)


async def _user_of(request: web.Request, users: UserStore) -> User | None:
    authorization = request.headers.get("Authorization", "")
    scheme = authorization.partition(" ")[0].lower()
    if scheme in _SCHEMES:  # one of another kind may be for a proxy: CouchDB passes over it, too
        if scheme == "bearer":
            return await _bearer(request, authorization)
        name, password = basic_credentials(authorization)
        source = request.remote or "?"
        user = await users.log_in(name, password, source)
        if user is None:
            raise AccessError("wrong user name or password", code="unauthorized")
        known = user
        request[STILL] = lambda: users.get(known.name) == known
        return user
    cookie = request.cookies.get(COOKIE_NAME)
    if not cookie:
        return None
    user = request.app[SIGNER].check(cookie, users.get)
    if user is not None and request.body_exists and request.content_type in _FORM_TYPES:
        raise UsageError(
            "the body's type is refused: a form of another site could have sent it",
            code="bad_content_type",
        )
    if user is not None and _lacks_token(request, cookie):
        raise AccessError(
            f"a change with a log-in cookie needs the header {CSRF_HEADER}, with the token that "
            "GET /_session tells",
            code="csrf_token_missing",
        )
    request[STILL] = lambda: request.app[SIGNER].check(cookie, users.get) is not None
    return user


def _lacks_token(request: web.Request, cookie: str) -> bool:
    """Return whether a request would have to show the token of its cookie, and does not."""
    if request.method in SAFE_METHODS or not request.path.startswith("/_millstream/"):
        return False
    shown = request.headers.get(CSRF_HEADER, "")
    return not request.app[SIGNER].is_csrf_token(cookie, shown)


async def _bearer(request: web.Request, authorization: str) -> User:
    tokens = request.app[TOKENS]
    if tokens is None or not tokens.is_taking:
        raise AccessError(
            "this node accepts no tokens: use HTTP Basic or log in at /_session",
            code="unauthorized",
        )
    token = authorization.partition(" ")[2].strip().encode(errors="surrogateescape")
    try:
        bearer = await tokens.check(token)
    except AccessError as error:
        raise AccessError(str(error), code="unauthorized") from error
    request[STILL] = lambda: tokens.lasts(bearer)
    return bearer_user(bearer.name, bearer.groups)


def _challenge(request: web.Request) -> str:
    """Return how a client is asked to log in; a browser asks people itself if it hears Basic."""
    if is_bearer(request.headers.get("Authorization", "")):
        return 'Bearer realm="millstream", error="invalid_token"'
    is_script = request.headers.get("Sec-Fetch-Mode", "navigate") != "navigate"
    return f'{"Cookie" if is_script else "Basic"} realm="millstream"'


def basic_credentials(authorization: str) -> tuple[str, str]:
    """Return name and password of a header `Authorization` of the scheme Basic.

    Raises:
        AccessError: `unauthorized`: it is malformed.
    """
    encoded = authorization.partition(" ")[2].strip()
    try:
        name, colon, password = b64decode(encoded, validate=True).decode().partition(":")
    except (Base64Error, ValueError):
        colon = ""
    if not colon:
        raise AccessError(
            "use HTTP Basic, a token (Bearer), or log in at /_session", code="unauthorized"
        )
    return name, password


MIDDLEWARES: Final[tuple[Middleware, ...]] = (
    log_access, hold_in_room, _share, _errors_as_json, _readable, _who,
)  # fmt: skip
