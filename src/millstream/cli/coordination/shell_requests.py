"""Whom the shell asks: the node that leads the group of a command's path, and again after PENDING.

Invariants:
1. A command goes to another node only where it was refused; what may have been done is not said
   again.
2. Who said MULTI says the rest on the same connection.
3. A command that waits is repeated with the number it was first said with, so it keeps its place;
   its answer is kept until it is said again.

Elsewhere: connections (`cli.coordination.coord`), what waits (`core.shell.commands`).
"""

from __future__ import annotations

import contextlib
import ssl
import time
from collections.abc import Callable, Sequence
from typing import Final

from millstream.cli.connect import Who
from millstream.cli.coordination.coord import PRIMARY_S, Coordination
from millstream.coordination.core.shell.commands import is_waiting, root_of
from millstream.coordination.core.shell.output import is_pending
from millstream.coordination.core.shell.replies import Reply
from millstream.errors import MillstreamError, UnavailableError

__all__ = ["NAMES_MAX", "PENDING_S", "Asking"]

PENDING_S: Final = 60.0
"""How long the shell waits for what is PENDING; the command can be said again."""
NAMES_MAX: Final = 1_000
"""Children of an element that are offered for a path."""
_PAUSE_S: Final = 0.2
_NOTICED: Final = (b"SUBSCRIBE", b"UNSUBSCRIBE")
_OPTIONS: Final = frozenset((b"MODE", b"TREE", b"CHILDREN", b"FROM", b"DURABLE"))


class Asking:
    """Connections to nodes; `told` is called with each push, in some other thread.

    Raises:
        MillstreamError: no connection to the first node, or no log-in.
    """

    def __init__(
        self, address: str, who: Who, tls: ssl.SSLContext | None, told: Callable[[Reply], None]
    ) -> None:
        self._home = self._last = address
        self._who, self._tls, self._told = who, tls, told
        self._links: dict[str, Coordination] = {}
        self._where: dict[bytes, str] = {}
        self._is_collecting = False
        self._link(address)

    def ask(self, words: Sequence[bytes]) -> list[Reply]:
        """Return what is answered: one reply, or the confirmations of subscriptions.

        Raises:
            UnavailableError: `lost`: it may have been done; else it was not done.
        """
        name = words[0].upper()
        if self._is_collecting or not is_waiting(words):
            found = self._follow(words)
            self._note(name, words, found[-1])
            return found
        return [self._ask_waiting(words)]

    def wait(self, words: Sequence[bytes]) -> bool:
        """Wait until a command is no longer PENDING, so that it is to be said again."""
        until = time.monotonic() + PENDING_S
        while time.monotonic() < until:
            time.sleep(_PAUSE_S)
            if not is_pending(self._ask_waiting(words, is_last=False)):
                return True
        return False

    def names_below(self, path: str) -> list[str]:
        """Return names of the children of an element, of "/" all namespaces; none if it fails."""
        if self._is_collecting:
            return []
        words = (
            (b"VDS", b"/")
            if path == "/"
            else (b"LIST", path.encode(), b"COUNT", b"%d" % NAMES_MAX)
        )
        reply = self._follow(words)[-1]
        if path == "/":
            names = [name.removeprefix(b"/") for name in reply.words[::2]]
        else:
            names = list(reply.parts[1].words) if len(reply.parts) == 2 else []
        return [name.decode("utf-8", "replace") for name in names]

    def close(self) -> None:
        """End all sessions, which releases what they hold, and all connections."""
        for root, address in {**self._where, b"/": self._home}.items():
            link = self._links.get(address)
            if link is not None and not link.is_lost:
                with contextlib.suppress(MillstreamError):  # it ends by itself, later
                    link.say((b"SESSION", b"CLOSE", b"NAMESPACE", root))
        for link in self._links.values():
            link.close()

    # ---- where

    def _follow(self, words: Sequence[bytes]) -> list[Reply]:
        until = time.monotonic() + PRIMARY_S
        root = root_of(words)
        address = self._last if self._is_collecting else self._where.get(root, self._last)
        while True:
            try:
                found = self._link(address).say(words, lambda said: _is_all(words, said))
            except UnavailableError as error:
                if error.code != "unreachable" or time.monotonic() > until:
                    raise
                address = self._home
                time.sleep(_PAUSE_S)
                continue
            is_elsewhere = found[0].text.startswith(b"NOTPRIMARY ") and found[0].is_error
            if not is_elsewhere or self._is_collecting or time.monotonic() > until:
                self._last = address
                if root and not is_elsewhere:
                    self._where[root] = address
                return found
            hint = found[0].text.rpartition(b" ")[2].decode("ascii", "replace")
            if hint in ("?", address):
                time.sleep(_PAUSE_S)
            else:
                address = hint

    def _link(self, address: str) -> Coordination:
        link = self._links.get(address)
        if link is not None and not link.is_lost:
            return link
        if link is not None:
            link.close()
        self._is_collecting = False
        link = self._links[address] = Coordination(address, self._who, self._tls, self._told)
        return link

    def _note(self, name: bytes, words: Sequence[bytes], reply: Reply) -> None:
        """Keep what a command has changed about the connections."""
        if name == b"MULTI" and reply.text == b"OK":
            self._is_collecting = True
        elif name in (b"EXEC", b"DISCARD"):
            self._is_collecting = False
        elif name == b"AUTH" and reply.text == b"OK" and len(words) == 3:
            self._who = Who(words[1].decode(), words[2].decode())
        elif name == b"RESET":
            self._is_collecting = False
            self._links.pop(self._last).close()

    # ---- what waits

    def _ask_waiting(self, words: Sequence[bytes], *, is_last: bool = True) -> Reply:
        """Repeat a command that waits, with the number of its first request."""
        key = tuple(words)
        address = self._where.get(root_of(words), self._last)
        link = self._link(address)
        number = link.pending.get(key)
        if number is None:
            session = self._session(root_of(words))
            if session.is_error:
                return session
            pairs = dict(zip(session.words[::2], session.words[1::2], strict=True))
            link = self._link(self._where.get(root_of(words), self._last))
            number = int(pairs[b"csn"]) + 1
        reply = self._follow((b"CSN", b"%d" % number, *words))[0]
        if is_pending(reply) or not is_last:
            link.pending[key] = number
        else:
            link.pending.pop(key, None)
        return reply

    def _session(self, root: bytes) -> Reply:
        """Return the session of the group of a namespace; open one if there is none."""
        found = self._follow((b"SESSION", b"INFO", b"NAMESPACE", root or b"/"))[0]
        if found.text.startswith(b"SESSIONEXPIRED"):
            found = self._follow((b"SESSION", b"OPEN", b"NAMESPACE", root or b"/"))[0]
        return found


def _is_all(words: Sequence[bytes], said: list[Reply]) -> bool:
    """Whether nothing more is answered to a command."""
    name = words[0].upper()
    if name not in _NOTICED or said[-1].sign != b">":
        return True
    paths = 0
    for word in words[1:]:
        if word.upper() in _OPTIONS:
            break
        paths += 1
    if name == b"UNSUBSCRIBE" and not paths:
        return said[-1].words[-1] == b"0"
    return len(said) >= paths
