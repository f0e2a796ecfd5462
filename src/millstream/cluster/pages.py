"""The administration pages of one node for one bucket, as a client calls them.

Elsewhere: requests and errors (`client.http`), which pages there are (docs/reference/http.md).
"""

from __future__ import annotations

import ssl
from typing import Any
from urllib.parse import quote

from millstream.client.connection import Connection
from millstream.client.http import HttpClient
from millstream.client.statistics import statistics_of
from millstream.errors import UnavailableError

__all__ = ["Pages", "coord_port_of", "http_port_of"]


class Pages(HttpClient):
    """The pages of one node for one bucket; created as `HttpClient`, with the bucket's name."""

    def __init__(
        self,
        host: str,
        port: int,
        bucket: str,
        *,
        user: str | None,
        password: str,
        tls: ssl.SSLContext | None,
        timeout_s: float,
    ) -> None:
        super().__init__(host, port, user=user, password=password, tls=tls, timeout_s=timeout_s)
        self._path = f"/_millstream/buckets/{quote(bucket, safe='')}"

    def ask(
        self, method: str, page: str, content: Any = None, *, timeout_s: float | None = None
    ) -> dict[str, Any]:
        """Return the answer of a page, named by its path after the bucket's name.

        Raises:
            MillstreamError: as `HttpClient.request`.
        """
        return self.request(method, f"{self._path}/{page}", content, timeout_s=timeout_s)


def http_port_of(connection: Connection) -> int:
    """Return the HTTP port of the node behind a kv connection.

    Raises:
        AccessError: its statistics need a log-in.
        UnavailableError: `no_http`.
    """
    none = UnavailableError(
        f"{connection.address} has no HTTP listener: it was started with --no-http", code="no_http"
    )
    return _port_of(connection, "http_port", none)


def coord_port_of(connection: Connection) -> int:
    """Return the coordination port for clients of the node behind a kv connection.

    Raises:
        AccessError: its statistics need a log-in.
        UnavailableError: `no_coord`.
    """
    none = UnavailableError(
        f"{connection.address} does not coordinate: it was started with --no-coord",
        code="no_coord",
    )
    return _port_of(connection, "coord_port", none)


def _port_of(connection: Connection, name: str, none: UnavailableError) -> int:
    port = int(statistics_of(connection).get(name, 0))
    if not port:
        raise none
    return port
