"""Cross-origin resource sharing: pages of other sites that may use the node from a browser.

No site may unless the operator named it (`--cors-origin`).

Invariants:
1. A site that was not named gets no header that lets its pages see an answer.
2. A browser's stored log-in is accepted only for sites that were named individually. With `*`,
   each request has to bring its credentials.

Elsewhere: other checks of foreign pages (`origins`), the caller (`guard`).
Source: the Fetch standard; CouchDB's headers.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Final

__all__ = ["ANY_ORIGIN", "MAX_AGE_S", "answer_headers", "is_allowed", "preflight_headers"]

ANY_ORIGIN: Final = "*"
MAX_AGE_S: Final = 600
"""How long a browser may cache the answer."""
_METHODS: Final = "GET, PUT, POST, HEAD, DELETE, COPY"
_HEADERS: Final = (
    "accept, accept-language, authorization, content-language, content-length, content-range, "
    "content-type, destination, if-match, if-none-match, last-event-id, range, x-csrf-token, "
    "x-requested-with"
)
_EXPOSED: Final = (
    "accept-ranges, cache-control, content-length, content-range, content-type, etag, location, "
    "server, x-couch-id, x-couch-update-newrev"
)


def is_allowed(origin: str | None, allowed: AbstractSet[str]) -> bool:
    """Return whether pages of an origin may use the node."""
    return origin is not None and (origin in allowed or ANY_ORIGIN in allowed)


def answer_headers(origin: str | None, allowed: AbstractSet[str]) -> dict[str, str]:
    """Return the extra headers for a page of an origin; none for sites that were not named."""
    if origin is None or not is_allowed(origin, allowed):
        return {"Vary": "Origin"} if allowed else {}
    headers = {
        "Access-Control-Allow-Origin": origin if origin in allowed else ANY_ORIGIN,
        "Access-Control-Expose-Headers": _EXPOSED,
        "Vary": "Origin",
    }
    if origin in allowed:
        headers["Access-Control-Allow-Credentials"] = "true"
    return headers


def preflight_headers(
    origin: str | None, method: str | None, allowed: AbstractSet[str]
) -> dict[str, str] | None:
    """Return the answer to a preflight request; None: the request is not allowed.

    Args:
        origin: of the page.
        method: requested method.
        allowed: the sites that were named.
    """
    if not is_allowed(origin, allowed) or method not in _METHODS.split(", "):
        return None
    return answer_headers(origin, allowed) | {
        "Access-Control-Allow-Methods": _METHODS,
        "Access-Control-Allow-Headers": _HEADERS,
        "Access-Control-Max-Age": str(MAX_AGE_S),
    }
