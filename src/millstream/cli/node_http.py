"""The HTTP port of the node whose kv port a command was given.

Elsewhere: what is asked there (`cli.bucket`, `cli.user`), the pages (docs/reference/http.md).
"""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from millstream.cli.connect import tls_of, who_of
from millstream.client.connection import PORT_DEFAULT, Connection
from millstream.client.http import HttpClient
from millstream.errors import UnavailableError
from millstream.model.addresses import parse_address
from millstream.wire.mcbp import Opcode, request

__all__ = ["node_http", "path_of", "print_object"]

TIMEOUT_S: Final = 10.0
REQUEST_S: Final = 60.0
"""Longest wait for one answer: a bucket is made durable, or removed with all it held."""
_STATISTICS_MAX: Final = 10_000


def node_http(
    address: str, *, user: str | None, password_file: Path | None, tls_ca: Path | None
) -> HttpClient:
    """Return the HTTP of a node, which its kv port tells.

    Raises:
        MillstreamError: the node cannot be reached, or an option is wrong; `no_http`.
    """
    who, tls = who_of(user, password_file), tls_of(tls_ca)
    host, port = parse_address(address, default_port=PORT_DEFAULT)
    with Connection(
        host, port, user=who.user, password=who.password, tls=tls, timeout_s=TIMEOUT_S
    ) as connection:
        http_port = _http_port_of(connection)
    return HttpClient(
        host, http_port, user=who.user, password=who.password, tls=tls, timeout_s=REQUEST_S
    )


def _http_port_of(connection: Connection) -> int:
    connection.send(request(Opcode.STAT, opaque=1))
    port = seen = 0
    while seen < _STATISTICS_MAX:
        for packet in connection.receive():
            if packet.status or not (packet.key or packet.value):
                if not port:
                    raise UnavailableError(
                        f"{connection.address} tells no HTTP port: it has none, or wants a log-in "
                        "(--user)",
                        code="no_http",
                    )
                return port
            seen += 1
            if packet.key == b"http_port":
                port = int(packet.value)
    raise UnavailableError("the node's statistics do not end")


def path_of(*names: str) -> str:
    """Return a path of HTTP from the names between its slashes.

    >>> path_of("_millstream", "a b")
    '/_millstream/a%20b'
    """
    return "".join(f"/{quote(name, safe='')}" for name in names)


def print_object(content: dict[str, Any]) -> None:
    """Print one JSON object, on one line."""
    print(json_module.dumps(content))
