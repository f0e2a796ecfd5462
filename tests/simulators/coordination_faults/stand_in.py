"""A server without any replication, honest or not: what the clients must see through.

Elsewhere: what it knows of namespaces (`stand_in_tree`), real nodes (`nodes`).
"""

from __future__ import annotations

import contextlib
import random
import socketserver
import threading
from typing import Any

from simulators.coordination_faults.stand_in_tree import Refusal, Tree

__all__ = ["LIES", "StandIn"]

LIES = ("stale", "lost", "twice")
"""Reads of what was before; writes that are answered and not done; done at two moments."""
_LIE_SHARE = 0.1


class StandIn(socketserver.ThreadingTCPServer):
    """Serves on a free port of loopback, as `with StandIn() as server`."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, lie: str = "", seed: int = 1) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.lie, self.rng, self.lock = lie, random.Random(seed), threading.Lock()
        self.values: dict[str, tuple[str, int]] = {}
        self.before: dict[str, tuple[str, int]] = {}
        self.tree = Tree(lie, lambda: self.rng.random() < _LIE_SHARE)
        self.version = 0
        self.sessions = 0
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def answer(self, connection: _Connection, words: list[str]) -> bytes:
        """Do what is asked for, or nearly."""
        if words[0] == "CSN":
            words = words[2:]
        if words[0] == "MULTI":
            connection.collected = []
            return b"+OK\r\n"
        if connection.collected is not None and words[0] != "EXEC":
            connection.collected.append(words)
            return b"+QUEUED\r\n"
        with self.lock:
            lies = self.rng.random() < _LIE_SHARE
            match words:
                case ("AUTH", *_):
                    return b"+OK\r\n"
                case ("SESSION", "OPEN", *_):
                    self.sessions += 1
                    connection.session = f"s{self.sessions}"
                    return _bytes(["client_id", connection.session, "secret", "x"])
                case ("GET", key, "META") if not key.startswith("/"):
                    is_stale = lies and self.lie == "stale" and key in self.before
                    value, version = (self.before if is_stale else self.values).get(key, ("", 0))
                    return _bytes([value, f"0:1:{version}"])
                case ("CAS", key, expected, value):
                    if self.values.get(key, ("", 0))[0] != expected:
                        return b"-CAS_MISMATCH it has another value\r\n"
                    return self._write(key, value, lies)
                case ("SET", key, value):
                    return self._write(key, value, lies)
                case ("SUBSCRIBE", path, *_):
                    self.tree.listen(path, connection.tell)
                    return b""
            return self._in_tree(connection, words)

    def _in_tree(self, connection: _Connection, words: list[str]) -> bytes:
        self.tree.version += 1
        try:
            if words[0] != "EXEC":
                return _bytes(self.tree.run(connection.session, words))
            collected, connection.collected = connection.collected or [], None
            return _bytes([self.tree.run(connection.session, each) for each in collected])
        except Refusal as refusal:
            # What fails does so before anything is done: with the first command.
            return f"-{'EXECABORT 0 ' if words[0] == 'EXEC' else ''}{refusal}\r\n".encode()

    def _write(self, key: str, value: str, lies: bool) -> bytes:
        if not (lies and self.lie == "lost"):
            again = self.before.get(key)
            self.version += 1
            self.before[key] = self.values.get(key, ("", 0))
            self.values[key] = value, self.version
            if lies and self.lie == "twice" and again and again[0]:
                self.version += 1
                self.values[key] = again[0], self.version
        return b"+OK\r\n"


class _Connection(socketserver.StreamRequestHandler):
    server: StandIn
    session = ""
    collected: list[list[str]] | None = None

    def tell(self, message: Any) -> None:
        """Say something that was not asked for."""
        with contextlib.suppress(OSError, ValueError):  # it has left
            self.wfile.write(_bytes(message))

    def handle(self) -> None:
        while line := self.rfile.readline():
            words = []
            for _ in range(int(line[1:])):
                size = int(self.rfile.readline()[1:])
                words.append(self.rfile.read(size + 2)[:-2].decode())
            self.wfile.write(self.server.answer(self, words))
        with self.server.lock:
            self.server.tree.end(self.session)


def _bytes(answer: Any) -> bytes:
    if isinstance(answer, list):
        return b"*%d\r\n" % len(answer) + b"".join(map(_bytes, answer))
    if isinstance(answer, int):
        return b":%d\r\n" % answer
    return b"$%d\r\n%b\r\n" % (len(answer), answer.encode())
