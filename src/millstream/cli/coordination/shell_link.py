"""One connection of the shell: a thread of its own hears what comes, also while nobody asks.

Invariants:
1. One command is under way at a time; a connection whose replies cannot be told apart any more is
   closed.
2. While the connection lives, silence never ends its sessions: empty lines break it, often enough
   for the shortest one.

Elsewhere: which node is asked (`cli.coordination.shell_requests`), how replies are cut
(`core.shell_replies`).
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from queue import Empty, Queue
from typing import Final

from millstream.cli.coordination.coord import ANSWER_S
from millstream.coordination.core.shell.replies import Reply, ReplyCutter
from millstream.errors import RemoteProtocolError, UnavailableError

__all__ = ["BEAT_S", "REPLIES_MAX", "Link"]

BEAT_S: Final = 0.2
"""How often the silence is broken: the shortest session ends after half a second."""
REPLIES_MAX: Final = 1_000
"""Replies that wait to be taken; an answer to UNSUBSCRIBE has one for each subscription."""
_READ_BYTES: Final = 256 * 1024
_CONFIRMING: Final = (b"subscribe", b"unsubscribe")


class Link:
    """A connection to a node; `told` is called with each push, in its thread.

    Also with those that confirm what was asked.

    Raises:
        UnavailableError: `unreachable`.
    """

    def __init__(
        self, host: str, port: int, tls: ssl.SSLContext | None, told: Callable[[Reply], None]
    ) -> None:
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self.pending: dict[tuple[bytes, ...], int] = {}
        """Commands that wait in this connection's session, and their numbers."""
        self._told, self._cutter, self._why = told, ReplyCutter(), ""
        self._replies: Queue[Reply | None] = Queue(REPLIES_MAX)
        self._lock = threading.Lock()
        try:
            self._socket = socket.create_connection((host, port), timeout=ANSWER_S)
            if tls is not None:
                self._socket = tls.wrap_socket(self._socket, server_hostname=host)
        except OSError as error:
            raise UnavailableError(
                f"coordination at {self.address} is not reached: {error.strerror or error}",
                code="unreachable",
            ) from error
        self._thread = threading.Thread(target=self._hear, name="shell", daemon=True)
        self._thread.start()

    @property
    def is_lost(self) -> bool:
        """Whether the connection is gone."""
        return bool(self._why)

    def ask(self, words: Sequence[bytes], has_all: Callable[[list[Reply]], bool]) -> list[Reply]:
        """Say a command; return what is answered, until that is all.

        Raises:
            UnavailableError: `lost`: the connection is gone; it may have been done.
        """
        parts = [b"*%d\r\n" % len(words)]
        parts += [b"$%d\r\n%b\r\n" % (len(word), word) for word in words]
        try:
            with self._lock:
                self._socket.sendall(b"".join(parts))
        except OSError as error:
            self.close(error.strerror or str(error))
        found: list[Reply] = []
        try:
            while not found or not has_all(found):
                reply = self._replies.get(timeout=ANSWER_S)
                if reply is None:
                    break
                found.append(reply)
        except (Empty, KeyboardInterrupt) as error:
            self.close("no answer came")  # one that comes later would be taken for the next one
            if isinstance(error, KeyboardInterrupt):
                raise
        if self._why and not found:
            raise UnavailableError(
                f"the connection to {self.address} is lost, and with it what this command did; "
                f"read to find out: {self._why}",
                code="lost",
            )
        return found

    def close(self, why: str = "closed") -> None:
        """Close; twice is harmless."""
        self._why = self._why or why
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _hear(self) -> None:
        """Take what comes until the connection ends."""
        try:
            while not self._why:
                is_waiting = isinstance(self._socket, ssl.SSLSocket) and self._socket.pending()
                if is_waiting or select.select([self._socket], [], [], BEAT_S)[0]:
                    with self._lock:
                        data = self._socket.recv(_READ_BYTES)
                    if not data:
                        raise ConnectionResetError("the node has closed it")
                    for reply in self._cutter.feed(data):
                        self._take(reply)
                else:
                    with self._lock:
                        self._socket.sendall(b"\r\n")
        except (OSError, ValueError, RemoteProtocolError) as error:  # ValueError: closed meanwhile
            self.close(str(error))
        finally:
            self._replies.put(None)

    def _take(self, reply: Reply) -> None:
        if reply.sign == b">":
            self._told(reply)
        if reply.sign != b">" or (reply.parts and reply.parts[0].text in _CONFIRMING):
            self._replies.put(reply)
