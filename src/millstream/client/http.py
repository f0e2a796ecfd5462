"""HTTP of one node as a client asks it: JSON there and back, errors as ours.

Invariants:
1. Every request has a time limit, and every answer that is kept whole a largest size. No proxy is
   asked.
2. An answer that is an error raises what the node raised, as far as its status tells.
3. An answer that ends early raises, too.

Elsewhere: which pages there are (docs/reference/http.md).
"""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPException, HTTPResponse
from typing import Any, Final

from millstream.client.kv import Client
from millstream.errors import (
    ConditionError,
    MillstreamError,
    RemoteProtocolError,
    UnavailableError,
    kind_of_http_status,
)

__all__ = ["ANSWER_BYTES_MAX", "HttpClient", "http_of"]

ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024
PIECE_BYTES: Final = 64 * 1024


class HttpClient:
    """The HTTP port of one node.

    Args:
        host: name or number, IPv6 without brackets.
        port: of HTTP.
        user: who logs in; None on a node without users.
        password: that user's.
        tls: context of encrypted requests; None for plain ones.
        timeout_s: longest wait for anything of an answer.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        user: str | None,
        password: str,
        tls: ssl.SSLContext | None,
        timeout_s: float,
    ) -> None:
        shown = f"[{host}]" if ":" in host else host
        self.address = f"{shown}:{port}"
        self._base = f"{'https' if tls else 'http'}://{self.address}"
        self._timeout_s = timeout_s
        self._opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=tls)
        )
        self._headers = {"Content-Type": "application/json"}
        if user is not None:
            credentials = b64encode(f"{user}:{password}".encode()).decode()
            self._headers["Authorization"] = f"Basic {credentials}"

    @contextmanager
    def open(
        self,
        method: str,
        path: str,
        body: bytes | Iterator[bytes] | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> Iterator[HTTPResponse]:
        """Send a request, and close its answer afterwards.

        Args:
            method: of HTTP.
            path: percent-encoded, with the leading slash.
            body: JSON text, or pieces that are sent as they come; None sends nothing.
            headers: further ones.
            timeout_s: longest wait, if it is another than that of all requests.

        Raises:
            UnavailableError: `unreachable`, also if it ends in the middle; or the node says so.
            AccessError, UsageError, ConditionError: the node says so, with its code.
        """
        sent = {**self._headers, **(headers or {})}
        asked = urllib.request.Request(self._base + path, body, sent, method=method)
        try:
            with self._opener.open(asked, timeout=timeout_s or self._timeout_s) as answer:
                yield answer
        except urllib.error.HTTPError as error:
            raise self._refusal(error) from error
        except (OSError, HTTPException) as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: Exception) -> UnavailableError:
        reason = getattr(error, "reason", error)
        return UnavailableError(f"{self.address} does not answer: {reason}", code="unreachable")

    def request(
        self,
        method: str,
        path: str,
        content: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> dict[str, Any]:
        """Return the object that a page answers; raises as `open`, and RemoteProtocolError."""
        body = content if isinstance(content, bytes | None) else json.dumps(content).encode()
        with self.open(method, path, body, headers=headers, timeout_s=timeout_s) as answer:
            return self._object(self._whole(answer))

    def etag(self, path: str) -> str | None:
        """Return the ETag of a page without its quotes, None if there is no such page."""
        try:
            with self.open("HEAD", path) as answer:
                found: str = answer.headers.get("ETag", "")
                return found.strip('"')
        except ConditionError:
            return None

    def pieces(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        timeout_s: float | None = None,
    ) -> Iterator[bytes]:
        """Yield an answer as it comes; raises as `open`."""
        with self.open(method, path, body, timeout_s=timeout_s) as answer:
            while piece := answer.read1(PIECE_BYTES):
                yield piece
            self._check_end(answer)

    def _whole(self, answer: HTTPResponse | urllib.error.HTTPError) -> bytes:
        data = answer.read(ANSWER_BYTES_MAX)
        if len(data) < ANSWER_BYTES_MAX:
            self._check_end(answer)
        return data

    def _check_end(self, answer: HTTPResponse | urllib.error.HTTPError) -> None:
        """Raise where fewer bytes came than were announced: `read` takes that for the end."""
        if missing := getattr(answer, "length", None):
            raise UnavailableError(
                f"{self.address} ends its answer early: {missing} bytes are missing",
                code="unreachable",
            )

    def _object(self, data: bytes) -> dict[str, Any]:
        try:
            content = json.loads(data)
        except (ValueError, RecursionError):
            content = None
        if not isinstance(content, dict):
            raise RemoteProtocolError(f"{self.address} answers something else than JSON objects")
        return content

    def _refusal(self, error: urllib.error.HTTPError) -> MillstreamError:
        with error:
            try:
                content = self._object(self._whole(error))
            except RemoteProtocolError:
                content = {}
            except UnavailableError as cut:
                return cut
            except (OSError, HTTPException) as lost:
                return self._unreachable(lost)
        reason, code = content.get("reason", error.reason), content.get("error", "")
        kind = kind_of_http_status(error.code)
        return kind(f"{self.address}: {reason}", code=str(code))


def http_of(
    client: Client,
    *,
    user: str | None,
    password: str,
    tls: ssl.SSLContext | None,
    timeout_s: float,
) -> HttpClient:
    """Return the HTTP of the node that a client is connected to.

    Raises:
        UnavailableError: `no_http`, it has no HTTP listener.
    """
    host = client.cluster_map.here.host
    port = client.cluster_map.services.get("mgmt", 0)
    if not port:
        raise UnavailableError(
            f"{host} has no HTTP listener: design documents and views need one", code="no_http"
        )
    return HttpClient(host, port, user=user, password=password, tls=tls, timeout_s=timeout_s)
