"""A database of a server that speaks CouchDB's HTTP API: CouchDB, PouchDB Server, Millstream.

Invariants:
1. Who has a name and a password logs in for a cookie first, and sends them with each request if
   the server knows no such log-in; a cookie that is no longer taken is renewed.
2. Every answer that is kept whole has a largest size; every wait has an end.
3. At most `http_connections` requests are under way.
4. What is for a proxy reaches no end: credentials go with the request for a tunnel, or with those
   that the proxy reads itself.
5. Errors are ours: what may go well later says so (`retry`).

Elsewhere: what is asked and what answers mean (`core.http_forms`), attachments (`attachments`).
"""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol
from urllib.parse import urlencode, urlsplit

import aiohttp

from millstream.errors import (
    AccessError,
    ConditionError,
    MillstreamError,
    RemoteProtocolError,
    UnavailableError,
    UsageError,
    kind_of_http_status,
)
from millstream.replication.aio.attachments import Related, related_documents
from millstream.replication.core import http_forms as forms
from millstream.replication.core.asking import (
    TOO_LARGE,
    Changes,
    Copy,
    Create,
    Diff,
    Failure,
    Fetch,
    Flush,
    Info,
    ReadCode,
    ReadInfo,
    ReadLocal,
    ReadRecords,
    Request,
    StoreRecords,
    Verify,
    Write,
    WriteLocal,
)

if TYPE_CHECKING:
    import ssl

    from millstream.replication.core.jobs import Endpoint, Job, Proxy

__all__ = ["ANSWER_BYTES_MAX", "ERROR_BYTES_MAX", "HttpPeer", "Peer", "http_peers"]

ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
"""Most bytes of an answer that is kept whole; after that, documents are requested in smaller
groups."""
ERROR_BYTES_MAX: Final = 64 * 1024
_CHUNK_BYTES: Final = 64 * 1024
_JSON: Final = {"Content-Type": "application/json", "Accept": "application/json"}
_EXPIRED: Final = "cookie_expired"
_NO_LOGIN: Final = (400, 401, 403, 404, 405)
_CODES: Final = {
    401: "unauthorized", 403: "forbidden", 404: "not_found", 409: "conflict",
    413: TOO_LARGE, 414: TOO_LARGE,
}  # fmt: skip
"""Status -> the code of its error where that is always the same."""


class Peer(Protocol):
    """One end of a job."""

    async def ask(self, request: Request) -> Any:
        """Return what answers a request; see `core.asking`."""

    def documents(self, wanted: Copy) -> AsyncGenerator[Related | tuple[str, str], None]:
        """Yield revisions with their attachments, each to be read before the next one."""

    async def put(self, name: str, document: Related) -> Failure | None:
        """Write a revision as another database has it, with its attachments."""


class HttpPeer:
    """A database at an address.

    Args:
        session: of this job; keeps its own cookies.
        end: where the database is, and who asks.
        timeout_ms: longest silence of an answer.
        tls: context of encrypted requests, None for the usual one.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        end: Endpoint,
        *,
        timeout_ms: int,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._session, self._end, self._tls = session, end, tls
        self._timeout_ms = timeout_ms
        parts = urlsplit(end.url)
        self._base, self._root = end.url, f"{parts.scheme}://{parts.netloc}"
        self._headers = dict(end.headers)
        if end.token:
            self._headers["Authorization"] = f"Bearer {end.token}"
        self._way = _way(end)
        self._logging_in = asyncio.Lock()
        self._is_known = not end.user
        self._has_cookie = False
        self._tells_vectors = False
        self._answers: dict[type, Callable[[Any], Awaitable[Any]]] = {
            ReadInfo: self._read_info, Create: self._create, ReadLocal: self._read_local,
            WriteLocal: self._write_local, ReadCode: self._read_code,
            ReadRecords: self._read_records, Verify: self._verify, StoreRecords: self._store,
            Changes: self._changes, Diff: self._diff, Fetch: self._fetch, Write: self._write,
            Flush: self._flush,
        }  # fmt: skip

    async def ask(self, request: Request) -> Any:
        """Return what answers a request.

        Raises:
            MillstreamError: `unreachable`, or what the server answers.
        """
        return await self._answers[type(request)](request)

    # ---- requests

    async def _read_info(self, _: ReadInfo) -> Info:
        info = forms.info_of(await self._whole("GET", "/"), self._end.identity)
        self._tells_vectors = bool(info.uuid)
        return info

    async def _create(self, request: Create) -> None:
        query = {name: str(value) for name, value in request.params.items()}
        try:
            await self._whole("PUT", "/" + ("?" + urlencode(query) if query else ""))
        except ConditionError as error:
            if error.code != "file_exists":
                raise

    async def _read_local(self, request: ReadLocal) -> Mapping[str, Any] | None:
        try:
            found = _object(await self._whole("GET", f"/_local/{request.name}"))
        except ConditionError:
            return None
        return found

    async def _write_local(self, request: WriteLocal) -> None:
        body = json.dumps({**request.body, "_id": f"_local/{request.name}"}).encode()
        await self._whole("PUT", f"/_local/{request.name}", body)

    async def _read_code(self, request: ReadCode) -> str:
        document, *names = request.path
        path = forms.document_path(f"_design/{document}")
        found: Any = _object(await self._whole("GET", path))
        for name in names:
            found = found.get(name) if isinstance(found, dict) else None
        if not isinstance(found, str):
            raise ConditionError(f"the source has no filter at {'/'.join(request.path)}")
        return found.strip()

    async def _read_records(self, request: ReadRecords) -> Any:
        query = urlencode([("origin", origin) for origin in request.origins])
        found = _object(await self._whole("GET", f"/_coverage?{query}"))
        listed = found.get("records")
        return forms.records_of(listed if isinstance(listed, list) else [])

    async def _verify(self, request: Verify) -> Any:
        return forms.vectors_of(
            await self._send(forms.verify_request(request)), len(request.claims)
        )

    async def _store(self, request: StoreRecords) -> None:
        await self._send(forms.store_request(request))

    async def _changes(self, request: Changes) -> Any:
        sent = forms.changes_request(request, timeout_ms=self._timeout_ms)
        data = await self._send(sent, longer_ms=request.wait_ms)
        return forms.page_of(data, tells_vectors=self._tells_vectors)

    async def _diff(self, request: Diff) -> Any:
        return forms.differences(await self._send(forms.diff_request(request)))

    async def _fetch(self, request: Fetch) -> Any:
        return forms.fetched(await self._send(forms.fetch_request(request)))

    async def _write(self, request: Write) -> Any:
        return forms.failures(await self._whole("POST", "/_bulk_docs", forms.write_body(request)))

    async def _flush(self, _: Flush) -> Info:
        await self._whole("POST", "/_ensure_full_commit", b"{}")
        return await self._read_info(ReadInfo())

    async def documents(self, wanted: Copy) -> AsyncGenerator[Related | tuple[str, str], None]:
        """Yield revisions with their attachments; see `Peer`."""
        path = forms.open_revs_path(wanted.wanted)
        headers = {"Accept": "multipart/mixed"}
        async with self._opened("GET", path, headers=headers) as response:
            kind = response.headers.get("Content-Type", "")
            async for found in related_documents(response.content, kind):
                yield found

    async def put(self, name: str, document: Related) -> Failure | None:
        """Write a revision with its attachments; see `Peer`."""
        path = forms.document_path(name) + "?new_edits=false"
        headers = {"Content-Type": document.content_type}
        try:
            async with self._opened("PUT", path, document.pieces(), headers=headers) as response:
                await _bounded(response, ANSWER_BYTES_MAX)
        except (AccessError, ConditionError, UsageError) as error:
            if error.code == "unauthorized":  # no document is at fault
                raise
            return Failure(name, document.rev, error.code, str(error))
        return None

    # ---- HTTP

    async def _send(self, sent: forms.Sent, *, longer_ms: int = 0) -> bytes:
        return await self._whole(sent.method, sent.path, sent.body or None, longer_ms=longer_ms)

    async def _whole(
        self, method: str, path: str, body: bytes | None = None, *, longer_ms: int = 0
    ) -> bytes:
        """Return a whole answer; a request is sent again once the cookie is renewed."""
        try:
            return await self._once(method, path, body, longer_ms)
        except UnavailableError as error:
            if error.code != _EXPIRED:
                raise
        return await self._once(method, path, body, longer_ms)

    async def _once(self, method: str, path: str, body: bytes | None, longer_ms: int) -> bytes:
        async with self._opened(method, path, body, longer_ms=longer_ms) as response:
            return await _bounded(response, ANSWER_BYTES_MAX)

    @asynccontextmanager
    async def _opened(
        self,
        method: str,
        path: str,
        body: bytes | AsyncIterator[bytes] | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        longer_ms: int = 0,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        await self._log_in()
        silence_s = (self._timeout_ms + longer_ms) / 1000
        try:
            async with self._session.request(
                method, self._base + path, data=body, ssl=self._tls or True,
                headers={**_JSON, **self._headers, **self._way.headers, **(headers or {})},
                proxy=self._way.proxy, proxy_headers=self._way.proxy_headers,
                timeout=_silence(silence_s), allow_redirects=False,
            ) as response:  # fmt: skip
                if response.status == 401 and self._has_cookie:
                    self._is_known = self._has_cookie = False  # it was too old
                    raise UnavailableError("the cookie has expired", code=_EXPIRED)
                if response.status >= 300:
                    raise await self._refusal(response)
                yield response
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._unreachable(error) from error

    async def _log_in(self) -> None:
        """Ask for a cookie, or have each request carry name and password."""
        async with self._logging_in:
            if self._is_known:
                return
            await self._ask_for_cookie()
            self._is_known = True
            if not self._has_cookie:
                self._headers["Authorization"] = _basic(self._end.user, self._end.password)

    async def _ask_for_cookie(self) -> None:
        name = {"name": self._end.user, "password": self._end.password}
        try:
            async with self._session.post(
                self._root + "/_session", json=name, ssl=self._tls or True,
                proxy=self._way.proxy, proxy_headers=self._way.proxy_headers,
                headers=self._way.headers, allow_redirects=False,
                timeout=_silence(self._timeout_ms / 1000),
            ) as response:  # fmt: skip
                self._has_cookie = response.status == 200 and "AuthSession" in response.cookies
                if response.status not in (200, *_NO_LOGIN):
                    raise await self._refusal(response)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._unreachable(error) from error

    async def _refusal(self, response: aiohttp.ClientResponse) -> MillstreamError:
        if self._end.proxy is not None and response.status == 407:
            return _kept_back(self._end, self._end.proxy, response.status)
        try:
            told = json.loads(await response.content.read(ERROR_BYTES_MAX))
        except ValueError:
            told = None
        told = told if isinstance(told, dict) else {}
        told.setdefault(
            "reason", f"HTTP status {response.status} ({response.method} {response.url.path})"
        )
        reason = f"{self._end.shown}: {told['reason']}"
        code = _CODES.get(response.status) or str(told.get("error", ""))
        return kind_of_http_status(response.status)(reason, code=code)

    def _unreachable(self, error: Exception) -> MillstreamError:
        if self._end.proxy is not None and isinstance(error, aiohttp.ClientHttpProxyError):
            return _kept_back(self._end, self._end.proxy, error.status)
        is_lasting = isinstance(error, aiohttp.ClientConnectorCertificateError)
        return UnavailableError(
            f"{self._end.shown} does not answer: {error or type(error).__name__}",
            code="unreachable",
            retry="never" if is_lasting else None,
        )


class _Way(NamedTuple):
    """How requests reach an end."""

    proxy: str | None = None
    headers: Mapping[str, str] = {}
    """Headers for the proxy, in addition to those for the peer."""
    proxy_headers: Mapping[str, str] | None = None
    """Headers of the request that opens a tunnel: only the proxy reads them."""


def _way(end: Endpoint) -> _Way:
    if end.proxy is None:
        return _Way()
    known = {"Proxy-Authorization": _basic(end.proxy.user, end.proxy.password)}
    if not end.proxy.user:
        return _Way(end.proxy.url)
    if end.url.startswith("https:"):
        return _Way(end.proxy.url, {}, known)
    return _Way(end.proxy.url, known)


def _kept_back(end: Endpoint, proxy: Proxy, status: int) -> MillstreamError:
    reason = f"the proxy {proxy.url} refuses to reach {end.shown}: HTTP status {status}"
    if status == 407:
        return AccessError(f"{reason}, it wants another user or password", code="unauthorized")
    return UnavailableError(reason, code="unreachable")


def _basic(user: str, password: str) -> str:
    return f"Basic {b64encode(f'{user}:{password}'.encode()).decode()}"


def _silence(seconds: float) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=None, sock_connect=seconds, sock_read=seconds)


@asynccontextmanager
async def http_peers(
    job: Job, tls: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[HttpPeer, HttpPeer]]:
    """Open both ends of a job that are addresses; connections are closed afterwards."""
    async with _session(job) as one, _session(job) as other:
        yield (
            HttpPeer(one, job.source, timeout_ms=job.timeout_ms, tls=tls),
            HttpPeer(other, job.target, timeout_ms=job.timeout_ms, tls=tls),
        )


def _session(job: Job) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=job.http_connections),
        cookie_jar=aiohttp.CookieJar(unsafe=True, quote_cookie=False),
    )


async def _bounded(response: aiohttp.ClientResponse, limit: int) -> bytes:
    body = bytearray()
    async for piece in response.content.iter_chunked(_CHUNK_BYTES):
        body += piece
        if len(body) > limit:
            raise UsageError(f"the answer is over {limit} bytes", code=TOO_LARGE)
    return bytes(body)


def _object(data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except ValueError as error:
        raise RemoteProtocolError(f"the peer's answer is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise RemoteProtocolError("the peer's answer is no object")
    return found
