"""RESP as a client writes and reads it: commands to bytes, and bytes to replies.

Every client uses this, also tests and simulators.

Elsewhere: the connection (`aio.client.link`), a node's end of it (`core.resp.protocol`), replies
with the types of the wire, for the shell (`core.shell.replies`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import hiredis

from millstream.coordination.core.client.events import ErrorReply
from millstream.errors import RemoteProtocolError

__all__ = ["Replies", "hello", "is_answer", "is_push", "packed"]

_NOT_YET: Final = object()
_CONFIRMING: Final = ([b"subscribe"], [b"unsubscribe"])
"""Pushes that begin like this answer a command."""


class Replies:
    """Cuts replies as Python values; an error is an `ErrorReply`, a push a `PushNotification`.

    Args:
        encoding: strings are decoded so; None: they stay bytes.
    """

    def __init__(self, encoding: str | None = None) -> None:
        self._reader = hiredis.Reader(
            replyError=ErrorReply, protocolError=RemoteProtocolError, notEnoughData=_NOT_YET,
            encoding=encoding,
        )  # fmt: skip

    def feed(self, data: bytes) -> Iterator[Any]:
        """Take bytes; yield each reply that is complete.

        Raises:
            RemoteProtocolError: this is not RESP; replies before it were yielded.
        """
        gets = self._reader.gets
        self._reader.feed(data)
        while (reply := gets()) is not _NOT_YET:
            yield reply

    @property
    def has_part(self) -> bool:
        """Whether a part of a reply is kept."""
        return self._reader.has_data()


def packed(argv: Sequence[bytes]) -> bytes:
    """Return a command as the wire has it."""
    data: bytes = hiredis.pack_command(tuple(argv))  # type: ignore[arg-type]  # a wrong stub
    return data


def hello(user: str | None, password: str) -> tuple[bytes, ...]:
    """Return the first command of each connection; `user`: who logs in, if anybody."""
    login = (b"AUTH", user.encode(), password.encode()) if user is not None else ()
    return (b"HELLO", b"3", *login)


def is_push(reply: Any) -> bool:
    """Whether the node says this without being asked, or confirms a subscription."""
    return isinstance(reply, hiredis.PushNotification)


def is_answer(reply: Any) -> bool:
    """Whether a command is answered by this."""
    return not is_push(reply) or reply[:1] in _CONFIRMING
