"""A client of RESP2 that knows nothing of the project: sends words, waits for one answer.

Invariants:
1. An error of the server is a `Refused` with its code; all that leaves the outcome unknown, a
   connection that ends, silence, bytes that are no answer, is an OSError.
"""

from __future__ import annotations

import socket
from typing import Any

__all__ = ["Address", "Connection", "Refused"]

Address = tuple[str, int]


class Refused(Exception):
    """The server says no."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.code, _, self.text = text.partition(" ")


class Connection:
    """One connection; `wait_s` bounds how long it is waited for bytes."""

    def __init__(self, address: Address, wait_s: float) -> None:
        self._socket = socket.create_connection(address, wait_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self._socket.makefile("rb")

    def call(self, *words: str) -> Any:
        """Return the answer to a command: text, a number, None, or a list of such."""
        parts = [f"*{len(words)}\r\n".encode()]
        for word in words:
            data = word.encode()
            parts += [b"$%d\r\n" % len(data), data, b"\r\n"]
        self._socket.sendall(b"".join(parts))
        answer = self._answer()
        if isinstance(answer, Refused):
            raise answer
        return answer

    def hear(self) -> Any:
        """Return what comes without being asked for; OSError if nothing comes in time."""
        return self._answer()

    def close(self) -> None:
        """No more is said; harmless if the other side has closed."""
        self._file.close()
        self._socket.close()

    def _answer(self) -> Any:
        line = self._file.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionError("the connection has ended")
        kind, rest = line[:1], line[1:-2].decode()
        if kind == b"+":
            return rest
        if kind == b"-":
            return Refused(rest)
        if kind == b":":
            return int(rest)
        if kind == b"$":
            return None if rest == "-1" else self._text(int(rest))
        if kind == b"*":
            return [self._answer() for _ in range(int(rest))]
        raise ConnectionError(f"{line!r} is no answer")

    def _text(self, size: int) -> str:
        data = self._file.read(size + 2)
        if len(data) != size + 2:
            raise ConnectionError("the connection has ended")
        return data[:-2].decode()
