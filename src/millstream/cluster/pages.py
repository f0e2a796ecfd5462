"""The pages of one node as a client asks for them: JSON there and back, errors as ours.

Invariants:
1. Every request has a time limit, and every answer a largest size. No proxy is asked.
2. An answer that is an error raises what the node raised, as far as its status tells.

Elsewhere: which pages there are (docs/reference/http.md).
"""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from base64 import b64encode
from http.client import HTTPException
from typing import Any, Final
from urllib.parse import quote

from millstream.client.connection import Connection
from millstream.errors import (
    AccessError,
    ConditionError,
    MillstreamError,
    RemoteProtocolError,
    UnavailableError,
    UsageError,
)
from millstream.wire.mcbp import Opcode, request

__all__ = ["Pages", "http_port_of"]

ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024
_STATISTICS_MAX: Final = 10_000
_BY_STATUS: Final[dict[int, type[MillstreamError]]] = {
    400: UsageError,
    401: AccessError,
    403: AccessError,
    404: ConditionError,
    409: ConditionError,
}


class Pages:
    """The pages of one node about one bucket.

    Args:
        host: name or number, IPv6 without brackets.
        port: of HTTP.
        bucket: its name.
        user: who logs in; None on a node without users.
        password: that user's.
        tls: context of encrypted requests; None for plain ones.
        timeout_s: longest wait for anything of an answer.
    """

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
        shown = f"[{host}]" if ":" in host else host
        self.address = f"{shown}:{port}"
        scheme = "https" if tls else "http"
        self._base = f"{scheme}://{self.address}/_millstream/buckets/{quote(bucket, safe='')}"
        self._timeout_s = timeout_s
        self._opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=tls)
        )
        self._headers = {"Content-Type": "application/json"}
        if user is not None:
            credentials = b64encode(f"{user}:{password}".encode()).decode()
            self._headers["Authorization"] = f"Basic {credentials}"

    def ask(
        self, method: str, page: str, content: Any = None, *, timeout_s: float | None = None
    ) -> dict[str, Any]:
        """Return what a page answers, its name being what stands behind the bucket's.

        Args:
            method: of HTTP.
            page: without the leading slash.
            content: sent as JSON; None sends nothing.
            timeout_s: longest wait, if it is another than that of all requests.

        Raises:
            UnavailableError: `unreachable`; or the node says so.
            AccessError, UsageError, ConditionError: the node says so, with its code.
            RemoteProtocolError: what answers is no Millstream.
        """
        body = None if content is None else json.dumps(content).encode()
        url = f"{self._base}/{page}"
        asked = urllib.request.Request(url, body, self._headers, method=method)
        try:
            with self._opener.open(asked, timeout=timeout_s or self._timeout_s) as answer:
                data = answer.read(ANSWER_BYTES_MAX)
        except urllib.error.HTTPError as error:
            raise self._refusal(error) from error
        except (OSError, HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise UnavailableError(
                f"{self.address} does not answer: {reason}", code="unreachable"
            ) from error
        return self._object(data)

    def _object(self, data: bytes) -> dict[str, Any]:
        try:
            content = json.loads(data)
        except ValueError:
            content = None
        if not isinstance(content, dict):
            raise RemoteProtocolError(f"{self.address} answers something else than JSON objects")
        return content

    def _refusal(self, error: urllib.error.HTTPError) -> MillstreamError:
        with error:
            try:
                content = self._object(error.read(ANSWER_BYTES_MAX))
            except (OSError, RemoteProtocolError):
                content = {}
        reason, code = content.get("reason", error.reason), content.get("error", "")
        kind = _BY_STATUS.get(error.code, UnavailableError)
        return kind(f"{self.address}: {reason}", code=str(code))


def http_port_of(connection: Connection) -> int:
    """Return the HTTP port of the node behind a kv connection.

    Raises:
        AccessError: its statistics are shown after a log-in only.
        UnavailableError: it has no HTTP listener.
    """
    connection.send(request(Opcode.STAT, opaque=1))
    port, count, is_more = 0, 0, True
    while is_more:
        for packet in connection.receive():
            if packet.status:
                raise AccessError("the node tells its ports only after a log-in (--user)")
            is_more = is_more and bool(packet.key or packet.value) and count < _STATISTICS_MAX
            count += 1
            if packet.key == b"http_port":
                port = int(packet.value)
    if not port:
        raise UnavailableError(
            f"{connection.address} has no HTTP listener: nodes with copies need one",
            code="no_http",
        )
    return port
