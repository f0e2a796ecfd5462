"""A server of registers without any replication, honest or not: what the clients must see through.

Elsewhere: real nodes (`nodes`).
"""

from __future__ import annotations

import random
import socketserver
import threading
from typing import Any

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
        self.version = 0
        self.sessions = 0
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def answer(self, words: list[str]) -> bytes:
        """Do what is asked for, or nearly."""
        if words[0] == "CSN":
            words = words[2:]
        with self.lock:
            lies = self.rng.random() < _LIE_SHARE
            match words:
                case ("AUTH", *_):
                    return b"+OK\r\n"
                case ("SESSION", "OPEN", *_):
                    self.sessions += 1
                    return _array("client_id", f"s{self.sessions}", "secret", "x")
                case ("GET", key, "META"):
                    is_stale = lies and self.lie == "stale" and key in self.before
                    value, version = (self.before if is_stale else self.values).get(key, ("", 0))
                    return _array(value, f"0:1:{version}")
                case ("CAS", key, expected, value):
                    if self.values.get(key, ("", 0))[0] != expected:
                        return b"-CAS_MISMATCH it has another value\r\n"
                    return self._write(key, value, lies)
                case ("SET", key, value):
                    return self._write(key, value, lies)
        return b"-BADARG not understood\r\n"

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

    def handle(self) -> None:
        while line := self.rfile.readline():
            words = []
            for _ in range(int(line[1:])):
                size = int(self.rfile.readline()[1:])
                words.append(self.rfile.read(size + 2)[:-2].decode())
            self.wfile.write(self.server.answer(words))


def _array(*texts: Any) -> bytes:
    return b"*%d\r\n" % len(texts) + b"".join(
        b"$%d\r\n%b\r\n" % (len(text), text.encode()) for text in texts
    )
