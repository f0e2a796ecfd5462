"""The HTTP port of the node whose kv port a command was given.

Elsewhere: what is asked there (`cli.serving.bucket`, `cli.serving.user`), the pages
(docs/reference/http.md).
"""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from millstream.cli.connect import connection_of, tls_of, who_of
from millstream.client.http import HttpClient
from millstream.cluster.pages import http_port_of

__all__ = ["node_http", "path_of", "print_object"]

TIMEOUT_S: Final = 10.0
REQUEST_S: Final = 60.0
"""Longest wait for one answer: a bucket is made durable, or removed with all it held."""


def node_http(
    address: str, *, user: str | None, password_file: Path | None, tls_ca: Path | None
) -> HttpClient:
    """Return the HTTP of a node, which its kv port tells.

    Raises:
        MillstreamError: the node cannot be reached, or an option is wrong; `no_http`.
    """
    who, tls = who_of(user, password_file), tls_of(tls_ca)
    with connection_of(address, who, tls, timeout_s=TIMEOUT_S) as connection:
        host, port = connection.host, http_port_of(connection)
    return HttpClient(
        host, port, user=who.user, password=who.password, tls=tls, timeout_s=REQUEST_S
    )


def path_of(*names: str) -> str:
    """Return a path of HTTP from the names between its slashes.

    >>> path_of("_millstream", "a b")
    '/_millstream/a%20b'
    """
    return "".join(f"/{quote(name, safe='')}" for name in names)


def print_object(content: dict[str, Any]) -> None:
    """Print one JSON object, on one line."""
    print(json_module.dumps(content))
