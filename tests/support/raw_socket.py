"""A blocking socket for clients of tests that send bytes as they are."""

from __future__ import annotations

import contextlib
import socket
from typing import Self

TIMEOUT_S = 60.0


class Closed(Exception):
    """The server closed the connection."""


class RawSocket:
    """One connection; `timeout_s`: the longest wait for anything."""

    def __init__(
        self,
        address: tuple[str, int],
        timeout_s: float = TIMEOUT_S,
        receive_bytes: int | None = None,
    ) -> None:
        self._socket = socket.socket(socket.AF_INET)
        if receive_bytes is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self._socket.settimeout(timeout_s)
        try:
            self._socket.connect(address)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError:  # a server that does not listen leaves nobody to close it
            self._socket.close()
            raise
        self._rest = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close; twice is harmless."""
        self._socket.close()

    def set_timeout(self, seconds: float) -> None:
        """Change the longest wait."""
        self._socket.settimeout(seconds)

    def close_sending(self) -> None:
        """Say that nothing more comes from here; answers can still be read."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def send(self, data: bytes) -> None:
        """Send bytes as they are.

        Raises:
            Closed: the server does not listen any more.
        """
        try:
            self._socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise Closed from error
