"""An HTTP client with no manners: bytes over one blocking socket, for tests from outside.

It shares nothing with the product or its HTTP library, so that a fault in either cannot hide
another one.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from support.raw_socket import Closed, RawSocket

_STATUS = re.compile(rb"HTTP/1\.[01] ([0-9]{3})[^\r\n]*\r\n")


class Answer(NamedTuple):
    """What came back."""

    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes

    @property
    def json(self) -> Any:
        """The body decoded."""
        return json.loads(self.body)


class RawHttp(RawSocket):
    """One connection; `receive_bytes`: size of the socket's buffer for received data."""

    def send_some(self, data: bytes) -> int:
        """Send what the server takes at once; return how many bytes.

        Raises:
            Closed: the server does not listen any more.
        """
        try:
            return self._socket.send(data)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise Closed from error

    def receive(self) -> Answer:
        """Return the next answer, whoever asked for it.

        Raises:
            Closed: the server closed before its end.
            TimeoutError: nothing came.
        """
        status, headers = self.head()
        if status in (204, 304):
            return Answer(status, headers, b"")
        if "chunked" in headers.get("transfer-encoding", ""):
            return Answer(status, headers, b"".join(self.chunks()))
        if "content-length" in headers:
            return Answer(status, headers, self._take(int(headers["content-length"])))
        return Answer(status, headers, self._all())

    def head(self) -> tuple[int, dict[str, str]]:
        """Return status and headers of the next answer; the body is not read."""
        while b"\r\n\r\n" not in self._rest:
            self._more()
        head, _, self._rest = self._rest.partition(b"\r\n\r\n")
        found = _STATUS.match(head + b"\r\n")
        assert found is not None, head[:200]
        lines = head.decode("latin-1").split("\r\n")[1:]
        pairs = (line.partition(":") for line in lines)
        return int(found[1]), {name.lower(): value.strip() for name, _, value in pairs}

    def chunks(self) -> Iterator[bytes]:
        """Yield the pieces of a body that is sent in chunks."""
        while True:
            size = int(self.line(), 16)
            piece = self._take(size + 2)[:-2]
            if not size:
                return
            yield piece

    def line(self) -> bytes:
        """Return what comes up to the next line's end."""
        while b"\r\n" not in self._rest:
            self._more()
        line, _, self._rest = self._rest.partition(b"\r\n")
        return line

    def is_closed_by_server(self) -> bool:
        """Whether the server closes within the time-out; what comes before is read."""
        try:
            while True:
                self._rest = b""
                self._more()
        except Closed:
            return True
        except TimeoutError:
            return False

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send a request as it should be, and return the answer."""
        self.send(request(method, path, body, headers))
        return Answer(*self.head(), b"") if method == "HEAD" else self.receive()

    def _take(self, size: int) -> bytes:
        pieces, have = [self._rest], len(self._rest)
        while have < size:
            self._rest = b""
            self._more()
            pieces.append(self._rest)
            have += len(self._rest)
        whole = b"".join(pieces)
        self._rest = whole[size:]
        return whole[:size]

    def _all(self) -> bytes:
        with contextlib.suppress(Closed):
            while True:
                self._more()
        return self._rest

    def _more(self) -> None:
        try:
            data = self._socket.recv(1 << 16)
        except ConnectionResetError as error:
            raise Closed from error
        if not data:
            raise Closed
        self._rest += data


def request(
    method: str,
    path: str,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
) -> bytes:
    """Return a request's bytes; a header given here takes the place of the usual one."""
    lines = {"Host": "localhost", "Accept": "application/json"}
    if body is not None:
        lines |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
    lines |= headers or {}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + (body or b"")
