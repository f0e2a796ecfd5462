"""Asking a node's coordination from the command line: one connection, one reply after the other.

Invariants:
1. A command for a group's primary follows `NOTPRIMARY` to where that is, and waits for it while
   nobody knows, for `PRIMARY_S` at most; nothing else is repeated.

Elsewhere: the client for programs (`coordination.aio.client.group_client`), the commands that use
this (`cli.coordination.cluster_pool`, `cli.serving.cluster_up`).
"""

from __future__ import annotations

import socket
import ssl
import time
from types import TracebackType
from typing import Any, Final, Self

import hiredis

from millstream.cli.connect import Who, connection_of
from millstream.cluster.pages import coord_port_of
from millstream.errors import (
    AccessError,
    MillstreamError,
    RemoteProtocolError,
    UnavailableError,
    UsageError,
)
from millstream.model.addresses import parse_address

__all__ = [
    "ANSWER_S",
    "PRIMARY_S",
    "Coordination",
    "ask_primary",
    "coord_address_at",
    "coordination_at",
]

ANSWER_S: Final = 15.0
"""Longest wait for an answer."""
PRIMARY_S: Final = 15.0
"""How long a command waits for its group to have a primary."""
_PAUSE_S: Final = 0.2
_READ_BYTES: Final = 64 * 1024
_ACCESS: Final = ("NOAUTH", "NOPERM", "WRONGPASS")
_USAGE: Final = ("BADARG", "BADCONFIG", "UNKNOWN_COMMAND", "EXISTS", "ERROR_DOES_NOT_EXISTS")


class Coordination:
    """A connection to the port for clients of coordination groups.

    Raises:
        UnavailableError: `unreachable`.
        AccessError: the log-in failed.
    """

    def __init__(self, host: str, port: int, who: Who, tls: ssl.SSLContext | None = None) -> None:
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._who, self._tls = who, tls
        self._reader = hiredis.Reader(replyError=_ErrorReply)
        try:
            self._socket = socket.create_connection((host, port), timeout=ANSWER_S)
            if tls is not None:
                self._socket = tls.wrap_socket(self._socket, server_hostname=host)
        except OSError as error:
            raise self._lost(error) from error
        login = ("AUTH", who.user, who.password) if who.user is not None else ()
        try:
            self.ask("HELLO", "3", *login)
        except BaseException:  # also when interrupted: nobody else closes it
            self._socket.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self._socket.close()

    def ask(self, *words: str, timeout_s: float = ANSWER_S) -> Any:
        """Return the reply to a command.

        Raises:
            MillstreamError: an error reply; `code` is the reply's in small letters.
        """
        parts = [b"*%d\r\n" % len(words)]
        parts += [b"$%d\r\n%b\r\n" % (len(word.encode()), word.encode()) for word in words]
        try:
            self._socket.settimeout(timeout_s)
            self._socket.sendall(b"".join(parts))
            while (reply := self._reader.gets()) is False:
                data = self._socket.recv(_READ_BYTES)
                if not data:
                    raise ConnectionResetError("it has closed the connection")
                self._reader.feed(data)
        except OSError as error:
            raise self._lost(error) from error
        except hiredis.ProtocolError as error:
            raise RemoteProtocolError(f"{self.address} does not speak RESP: {error}") from error
        if isinstance(reply, _ErrorReply):
            raise error_of(str(reply))
        return reply

    def elsewhere(self, address: str) -> Coordination:
        """Return a connection to another node, as the same user."""
        host, port = parse_address(address, default_port=0)
        return Coordination(host, port, self._who, self._tls)

    def _lost(self, error: OSError) -> UnavailableError:
        return UnavailableError(
            f"coordination at {self.address} is not reached: {error.strerror or error}",
            code="unreachable",
        )


class _ErrorReply(Exception):
    """An error reply, as it was sent."""


def error_of(text: str) -> MillstreamError:
    """Return the exception that an error reply stands for."""
    code, _, rest = text.partition(" ")
    kind: type[MillstreamError] = UnavailableError
    if code in _ACCESS:
        kind = AccessError
    elif code in _USAGE:
        kind = UsageError
    return kind(f"{code}: {rest}" if rest else code, code=code.lower())


def coordination_at(address: str, who: Who, tls: ssl.SSLContext | None) -> Coordination:
    """Return a connection to the coordination of the node whose kv port is at `address`."""
    host, port = _place_at(address, who, tls)
    return Coordination(host, port, who, tls)


def coord_address_at(address: str, who: Who, tls: ssl.SSLContext | None) -> str:
    """Return where the node whose kv port is at `address` serves coordination."""
    host, port = _place_at(address, who, tls)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _place_at(address: str, who: Who, tls: ssl.SSLContext | None) -> tuple[str, int]:
    with connection_of(address, who, tls, timeout_s=ANSWER_S) as connection:
        return connection.host, coord_port_of(connection)


def ask_primary(node: Coordination, *words: str, timeout_s: float = ANSWER_S) -> Any:
    """Have a command done by its group's primary; `node` is asked first where that is.

    Raises:
        MillstreamError: as `Coordination.ask`.
    """
    until = time.monotonic() + PRIMARY_S
    address = ""
    while True:
        try:
            if not address:
                return node.ask(*words, timeout_s=timeout_s)
            with node.elsewhere(address) as primary:
                return primary.ask(*words, timeout_s=timeout_s)
        except UnavailableError as error:
            if error.code not in ("notprimary", "unreachable", "busy", "noquorum"):
                raise
            if time.monotonic() > until:
                raise
            hint = str(error).rpartition(" ")[2]
            address = hint if error.code == "notprimary" and hint != "?" else ""
        time.sleep(_PAUSE_S)
