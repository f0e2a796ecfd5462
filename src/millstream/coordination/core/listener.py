"""What is to be told on a connection without being asked for again: its subscriptions' messages.

Invariants:
1. Messages wait with the subscriber, which bounds them, and become output only while there is
   room for it: who does not read them is told so, and no socket grows.
2. In RESP2, from the first confirmation until UNSUBSCRIBE leaves none, only what such clients
   expect then is done.

Elsewhere: what is told (`namespace.audience`), the commands (`front_listening`), when output is
sent (`front`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from millstream.coordination.core.namespace.audience import Subscriber
from millstream.coordination.core.namespace.run import Asker
from millstream.coordination.core.resp import render_message
from millstream.coordination.core.values import error

__all__ = ["BARRED", "Listener"]

BARRED: Final = error(
    "ERR",
    "in RESP2 a connection that has subscribed takes only SUBSCRIBE, UNSUBSCRIBE, PING, "
    "SESSION, RESET and QUIT; HELLO 3 before subscribing, or use another connection",
)
_BESIDE_MESSAGES: Final = frozenset(
    (b"SUBSCRIBE", b"UNSUBSCRIBE", b"PING", b"SESSION", b"QUIT", b"RESET")
)


class Listener:
    """The part of a connection that is told things; `wake`: there is something to take."""

    __slots__ = ("is_on", "subscriber")

    def __init__(self, wake: Callable[[], None]) -> None:
        self.subscriber = Subscriber(wake, Asker())
        self.is_on = False
        """From the first confirmation until the client has ended all."""

    def bars(self, name: bytes, protocol: int) -> bool:
        """Whether a command would be answered in a way that clients do not expect now."""
        return self.is_on and protocol == 2 and name not in _BESIDE_MESSAGES

    @property
    def waiting_bytes(self) -> int:
        """Of messages that are not taken."""
        return self.subscriber.waiting_bytes

    def take(self, bytes_max: int, protocol: int) -> bytes:
        """Return messages to be sent, about so many bytes of them."""
        messages = self.subscriber.take(bytes_max)
        return b"".join([render_message(*message, protocol) for message in messages])

    def end(self) -> None:
        """Be told nothing any more."""
        self.subscriber.end()
        self.is_on = False
