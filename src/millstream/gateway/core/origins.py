"""Protection against pages of other sites in a browser: checks of `Host` and `Origin`.

A browser lets any page send requests to this machine. Two headers identify them: `Host` is the
name that the page addressed (a foreign name that points here is refused), `Origin` is the site of
the page.

Invariants:
1. A request whose Host is not one of the node's names is refused while there are no users.
2. A request that changes something is refused if its Origin differs from its Host.

Elsewhere: the cookie (`SameSite`), and the required JSON body (`gateway.aio.guard`).
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Final
from urllib.parse import urlsplit

from millstream.errors import AccessError

__all__ = ["SAFE_METHODS", "refuse_foreign_page"]

SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1", ""})


def refuse_foreign_page(
    method: str, host: str, origin: str | None, *, hosts: AbstractSet[str], has_users: bool
) -> None:
    """Refuse a request that a page of another site would send.

    Args:
        method: upper case.
        host: the Host header, with or without port; empty if there was none.
        origin: the Origin header.
        hosts: the node's own names, lower case.
        has_users: whether there are users (then a foreign page lacks the credentials).

    Raises:
        AccessError: `foreign_host`, `foreign_origin`.
    """
    name = _name_of(host)
    if not has_users and name not in _LOOPBACK_NAMES and name not in hosts:
        raise AccessError(
            f"this node is not called {name!r}; use its address, or start it with --advertise",
            code="foreign_host",
        )
    if method in SAFE_METHODS or origin is None:
        return
    if urlsplit(origin).netloc.lower() != host.lower():
        raise AccessError(
            f"a page of {origin} may not change anything here", code="foreign_origin"
        )


def _name_of(host: str) -> str:
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return host.lower()
