"""The figures of a node and of its buckets, from its kv port and its HTTP port.

Invariants:
1. A bucket whose figures the user may not read, or that is not served, has none.

Elsewhere: what they say (`cli.serving.health`), who shows them (`cli.serving.status`,
`cli.serving.top`).
"""

from __future__ import annotations

import ssl
from typing import Any, Final, Self

from millstream.cli.connect import Who, connection_of
from millstream.cli.serving.health import figure_of
from millstream.client.http import HttpClient
from millstream.client.statistics import statistics_of
from millstream.wire.mcbp import Opcode, Status

__all__ = ["NodeFigures"]

TIMEOUT_S: Final = 10.0


class NodeFigures:
    """Asks one node, over a connection that stays open.

    Raises:
        MillstreamError: it cannot be reached.
    """

    def __init__(self, address: str, who: Who, tls: ssl.SSLContext | None) -> None:
        self._address, self._who, self._tls = address, who, tls
        self._connection = connection_of(address, who, tls, timeout_s=TIMEOUT_S)
        self._names: frozenset[str] = frozenset()
        """The names of the node's own figures; empty before the first reading."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def read(self) -> dict[str, Any]:
        """Return the figures of the node, `listeners`, `uuid` and `buckets` with their `figures`.

        Raises:
            MillstreamError: it cannot be reached, or wants a log-in.
        """
        if self._connection.has_ended:
            self._connection.close()
            self._names = frozenset()
            self._connection = connection_of(
                self._address, self._who, self._tls, timeout_s=TIMEOUT_S
            )
        node = self._statistics()
        self._names = self._names or frozenset(node)  # later a bucket is selected
        node = {name: node[name] for name in node if name in self._names}
        found: dict[str, Any] = {"connect": self._address, **node}
        found.pop("buckets", None)
        if http_port := node.get("http_port", 0):
            http = HttpClient(
                self._connection.host, int(http_port), user=self._who.user,
                password=self._who.password, tls=self._tls, timeout_s=TIMEOUT_S,
            )  # fmt: skip
            found |= http.request("GET", "/_millstream/node")
            found |= http.request("GET", "/_millstream/buckets")
        for bucket in found.setdefault("buckets", []):
            if bucket["state"] == "ready":
                self._add_figures(bucket, node)
        return found

    def _statistics(self) -> dict[str, Any]:
        return {name: figure_of(text) for name, text in statistics_of(self._connection).items()}

    def _add_figures(self, bucket: dict[str, Any], node: dict[str, Any]) -> None:
        chosen = self._connection.request(Opcode.SELECT_BUCKET, key=bucket["name"].encode())
        if chosen.status == Status.SUCCESS:
            found = self._statistics()
            bucket["figures"] = {name: found[name] for name in found if name not in node}
