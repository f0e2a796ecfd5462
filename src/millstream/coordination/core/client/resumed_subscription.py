"""A subscription that survives connections: what to request, and which updates are new.

    following = Following("/app", "TREE")
    following.request()     # what to send on each new connection
    following.take(reply)   # -> Change, Again, Over, or None: not for the user

Invariants:
1. Each part of each entry is returned once, in order. Complete entries are not requested again.
   Parts of an incomplete entry that come a second time are dropped.
2. If updates may be missing, it is an error (`HISTORY_LOST`).
3. A lock prevents a subscription from beginning, not from being resumed: a resumed one waits until
   it is allowed again.
4. No clock, no sockets.

Elsewhere: connections (`aio.client.subscription`), the node's side (`namespace.audience`).

Source: V2R2, "Subscribe to an element".
"""

from __future__ import annotations

import json
from base64 import b64decode
from typing import Any, Final, NamedTuple, TypeAlias

from millstream.coordination.core.client.errors import error_of
from millstream.coordination.core.client.events import (
    ErrorReply,
    Outcome,
)
from millstream.errors import MillstreamError, UsageError
from millstream.vsr.core.versions import NEVER, Version, parse_version

__all__ = ["SCOPES", "Again", "Change", "Following", "Heard", "Over"]

SCOPES: Final = ("ELEMENT", "CHILDREN", "TREE")
"""What is heard of: the element; also which children it has; also all below it."""
_LATER: Final = ("NOTPRIMARY", "NOQUORUM", "BUSY", "BEHIND", "UNKNOWN", "NOTREADY")
"""Refusals after which another member, or a later moment, may do."""


class Change(NamedTuple):
    """One thing that an entry did; `part` of `parts`, from 0, if it did several."""

    lsn: int
    version: Version
    op: str
    """`create put delete move attr list set queue counter lock unlock child`."""
    path: str
    to: str
    """The new path of a `move`."""
    type: str
    time_ms: int
    client: str
    data: bytes | None
    """The data of that moment, if it was asked for and the element has any."""
    part: int
    parts: int


class Again(NamedTuple):
    """Ask once more, on another connection; `address`: where, if that was said."""

    address: str | None = None


class Over(NamedTuple):
    """It has ended; without an error: the element was deleted."""

    error: MillstreamError | None


Heard: TypeAlias = Change | Again | Over | None


class Following:
    """One subscription to one element.

    Args:
        path: of the element.
        scope: one of `SCOPES`.
        with_data: have the data of each moment.
        after: go on after this LSN, or after the change with this version, which also names the
            history; None: from now on.

    Raises:
        UsageError: `bad_scope`.
    """

    def __init__(
        self, path: str, scope: str = "ELEMENT", *, with_data: bool = False,
        after: int | Version | None = None,
    ) -> None:  # fmt: skip
        if scope not in SCOPES:
            raise UsageError(f"no scope {scope!r}: {', '.join(SCOPES)}", code="bad_scope")
        self.lsn = after.lsn if isinstance(after, Version) else after
        """All up to there was heard, in full."""
        self._version: Version | None = after if isinstance(after, Version) else None
        """The version of the last change that was fully received. It also names the history."""
        self.seen = 0
        """No member that is behind this LSN will do."""
        self.path = self._place = path
        self._words: tuple[bytes, ...] = () if scope == "ELEMENT" else (scope.encode(),)
        self._words += (b"MODE", b"DATA") if with_data else ()
        self._under_way = (-1, -1)
        self.has_begun = False
        """A node has said that it tells what happens from now on."""

    def request(self) -> tuple[bytes, ...]:
        """Return the command for a new connection."""
        come_from = () if self.lsn is None else (b"FROM", self._come_from(self.lsn))
        seen = max(self.seen, self.lsn or 0)
        known = (b"SEEN", b"0:0:%d" % seen) if seen else ()
        return (*known, b"SUBSCRIBE", self.path.encode(), *self._words, *come_from)

    def _come_from(self, lsn: int) -> bytes:
        """Return what to go on from: a version where one is known for what was heard."""
        version = self._version
        return version.text if version is not None and version.lsn == lsn else b"%d" % lsn

    def take(self, reply: Any) -> Heard:
        """Take what came on the connection after the greeting."""
        if isinstance(reply, ErrorReply):
            return self._refused(reply)
        if not isinstance(reply, list) or len(reply) != 3 or reply[0] != b"message":
            self.has_begun |= isinstance(reply, list) and reply[:1] == [b"subscribe"]
            return None
        message = json.loads(reply[2])
        op, lsn = message["op"], message["lsn"]
        if op in ("start", "progress", "overrun"):
            self._reach(lsn, parse_version(message.get("version", "").encode()))
            return Again() if op == "overrun" else None
        if op == "denied":
            return Over(error_of((b"SUBSCRIBE",), Outcome.ANSWERED, ErrorReply("NOPERM r")))
        return self._told(message)

    def _reach(self, lsn: int, version: Version | None) -> None:
        """Note that all up to there was heard, in full."""
        if self.lsn is None or lsn >= self.lsn:
            self.lsn, self._version = lsn, version or self._version

    def _told(self, message: dict[str, Any]) -> Heard:
        lsn, part, parts = message["lsn"], message.get("part", 0), message.get("parts", 1)
        if (lsn, part) <= self._under_way:
            return None
        self._under_way = lsn, part
        version = parse_version(message["version"].encode()) or NEVER
        if part == parts - 1:
            self.lsn, self._version = lsn, version
        data = message.get("data")
        change = Change(
            lsn, version, message["op"],
            message["path"], message.get("to", ""), message["type"], message["ts"],
            message.get("client", ""), None if data is None else b64decode(data), part, parts,
        )  # fmt: skip
        if change.op == "move" and change.path == self._place:
            self._place = change.to
        return change

    def ends_with(self, change: Change) -> bool:
        """Whether nothing comes after this: the element was deleted."""
        return change.op == "delete" and change.path == self._place

    def _refused(self, reply: ErrorReply) -> Heard:
        if reply.code not in _LATER and not (reply.code == "LOCKED" and self.has_begun):
            command = (b"SUBSCRIBE", self.path.encode())
            return Over(error_of(command, Outcome.ANSWERED, reply))
        words = reply.words.split()
        is_named = reply.code == "NOTPRIMARY" and len(words) > 2 and words[2] != "?"
        return Again(words[2] if is_named else None)
