"""The request as functions of design documents see it, and the answer of an update function.

    answer of an update function    {"code", "headers", and one of "body", "json", "base64"}

Invariants:
1. No function sees the credentials of a request.
2. A function's answer is isolated: it sets no cookie, gives no access to other sites, and a
   browser does not run it as a page of this node.
3. An invalid answer is rejected before anything is stored.

Elsewhere: the functions (`gateway.core.api.node.FunctionApi`), the pages
(`gateway.aio.documents.update_pages`, `gateway.aio.documents.changes_pages`).
Source: CouchDB's request and response objects.
"""

from __future__ import annotations

import re
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, unquote

import msgspec

from millstream.errors import MillstreamError, UsageError

__all__ = [
    "ANSWER_HEADERS_MAX", "ANSWER_HEADER_BYTES_MAX", "FORM_FIELDS_MAX", "FORM_TYPE", "Rendered",
    "form_of", "rendered", "seen_headers", "seen_path", "seen_text",
]  # fmt: skip

FORM_FIELDS_MAX: Final = 1000
ANSWER_HEADERS_MAX: Final = 50
ANSWER_HEADER_BYTES_MAX: Final = 4096
"""Name and value of one header."""
FORM_TYPE: Final = "application/x-www-form-urlencoded"
_CREDENTIALS: Final = frozenset({"authorization", "cookie", "proxy-authorization"})
_OWN: Final = frozenset(
    {
        "clear-site-data", "connection", "content-encoding", "content-length",
        "content-security-policy", "date", "keep-alive", "proxy-authenticate", "server",
        "service-worker-allowed", "set-cookie", "strict-transport-security", "trailer",
        "transfer-encoding", "upgrade", "vary", "www-authenticate", "x-content-type-options",
        "x-couch-id", "x-couch-update-newrev",
    }
)  # fmt: skip
"""Headers reserved for the node."""
_OWN_PREFIX: Final = "access-control-"
_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_HEADER_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_BODILESS: Final = (204, 205, 304)
_TYPES: Final = {
    "body": "text/html; charset=utf-8",
    "json": "application/json",
    "base64": "application/binary",
}
"""Content types of bodies, by the member that contains them."""
_SHIELD: Final = {"Content-Security-Policy": "sandbox", "X-Content-Type-Options": "nosniff"}


class Rendered(NamedTuple):
    """An answer of an update function."""

    code: int | None
    """The status code. None: the status of the change."""
    headers: dict[str, str]
    body: bytes


def seen_headers(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the headers that a function sees, with names such as `Content-Type`."""
    return {
        "-".join(part.capitalize() for part in name.split("-")): seen_text(value)
        for name, value in headers
        if name.lower() not in _CREDENTIALS
    }


def seen_text(text: str) -> str:
    """Return request data as a text that JSON can contain, whatever its bytes are."""
    return text.encode(errors="surrogateescape").decode(errors="replace")


def seen_path(raw_path: str) -> list[str]:
    """Return the path segments of an address as it was sent."""
    return [unquote(step) for step in raw_path.strip("/").split("/")]


def form_of(content_type: str, body: str) -> dict[str, str]:
    """Return the fields of a form; none if the body is no form.

    Raises:
        UsageError: `bad_request`: too many.
    """
    if content_type != FORM_TYPE:
        return {}
    try:
        return dict(parse_qsl(body, keep_blank_values=True, max_num_fields=FORM_FIELDS_MAX))
    except ValueError as error:
        raise UsageError(
            f"a form has at most {FORM_FIELDS_MAX} fields", code="bad_request"
        ) from error


def rendered(answer: Mapping[str, Any]) -> Rendered:
    """Return the answer that an update function wants to send.

    Raises:
        MillstreamError: `render_error`: it cannot be sent.
    """
    code = answer.get("code")
    if code is not None and not _is_code(code):
        raise _bad(f"its code {str(code)[:40]} is not from 200 to 599")
    kinds = [kind for kind in _TYPES if answer.get(kind) is not None]
    if len(kinds) > 1:
        raise _bad(f"it has {' and '.join(kinds)}")
    headers, body = _headers(answer.get("headers")), b""
    names = {name.lower() for name in headers}
    if kinds:
        body = _body(kinds[0], answer[kinds[0]])
    if "content-type" not in names:
        headers["Content-Type"] = _TYPES[kinds[0] if kinds else "body"]
    if code in _BODILESS:
        body = b""
    return Rendered(None if code is None else int(code), headers | _SHIELD, body)


def _is_code(code: Any) -> bool:
    is_whole = isinstance(code, int) or (isinstance(code, float) and code.is_integer())
    return is_whole and 200 <= code <= 599


def _body(kind: str, value: Any) -> bytes:
    if kind == "json":
        return msgspec.json.encode(value) + b"\n"
    if not isinstance(value, str):
        raise _bad(f"its {kind} is no text")
    if kind == "body":
        return value.encode(errors="replace")
    try:
        return b64decode(value, validate=True)
    except (Base64Error, ValueError) as error:
        raise _bad("its base64 is none") from error


def _headers(said: Any) -> dict[str, str]:
    if said is None:
        return {}
    if not isinstance(said, dict) or len(said) > ANSWER_HEADERS_MAX:
        raise _bad(f"its headers are no object of at most {ANSWER_HEADERS_MAX}")
    texts = {name: _number(value) for name, value in said.items()}
    for name, value in texts.items():
        if not isinstance(value, str) or len(name) + len(value) > ANSWER_HEADER_BYTES_MAX:
            raise _bad(f"header {name[:40]!r} is no text, or too long")
        if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
            raise _bad(f"header {name[:40]!r} has characters that none may have")
        if name.lower() in _OWN or name.lower().startswith(_OWN_PREFIX):
            raise _bad(f"header {name!r} is not for functions to say")
    return texts


def _number(value: Any) -> Any:
    """Return the number in a header value, anything else unchanged."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"{value:g}" if isinstance(value, float) else str(value) if is_number else value


def _bad(what: str) -> MillstreamError:
    return MillstreamError(f"the answer of the update function: {what}", code="render_error")
