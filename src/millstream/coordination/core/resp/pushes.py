"""Messages that were not requested: of subscriptions, and notices of sessions.

Invariants:
1. Messages wait with the subscriber, which bounds them. They become output only while there is
   room: a client that does not read them gets a last message, and no socket buffer grows.
2. In RESP2, from the first confirmation until the last UNSUBSCRIBE, only the commands that such
   clients expect are allowed.
3. Notices are hints: the newest `NOTICES_MAX` of each group wait, and none outlives the
   connection. In RESP3 they are pushed. In RESP2 a client asks for the next one.

Elsewhere: messages (`namespace.audience`, `namespace.state.waits`), the commands
(`subscribe_commands`), when output is sent (`session`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from millstream.coordination.core.namespace.audience import Subscriber, UsedSession
from millstream.coordination.core.namespace.state.run import Asker, Notice
from millstream.coordination.core.resp.protocol import render, render_message
from millstream.vsr.core.values import bulk, error, push

__all__ = ["BARRED", "NOTICES_MAX", "NOTICE_PATH_BYTES_MAX", "Listener"]

NOTICES_MAX: Final = 128
"""Most notices that wait for the client of one session."""
NOTICE_PATH_BYTES_MAX: Final = 4096
"""About an element with a longer path there is none."""

BARRED: Final = error(
    "ERR",
    "in RESP2 a connection that has subscribed takes only SUBSCRIBE, UNSUBSCRIBE, PING, "
    "SESSION, RESET and QUIT; HELLO 3 before subscribing, or use another connection",
)
_BESIDE_MESSAGES: Final = frozenset(
    (b"SUBSCRIBE", b"UNSUBSCRIBE", b"PING", b"SESSION", b"QUIT", b"RESET")
)


class Listener:
    """The part of a connection that is told things.

    `wake`: there is something to take. `sessions`: those that are used on the connection.
    """

    __slots__ = ("_notices", "_waiters", "_wake", "is_on", "subscriber")

    def __init__(
        self, wake: Callable[[], None], sessions: Mapping[int, UsedSession] | None = None
    ) -> None:
        self.subscriber = Subscriber(wake, Asker(), sessions)
        self.is_on = False
        """Whether it is on: from the first confirmation until the client has ended all."""
        self._wake = wake
        self._waiters: dict[int, list[Callable[[Notice | None], None]]] = {}
        self._notices: dict[int, deque[Notice]] = {}

    def bars(self, name: bytes, protocol: int) -> bool:
        """Whether a command would be answered in a way that clients do not expect now."""
        return self.is_on and protocol == 2 and name not in _BESIDE_MESSAGES

    @property
    def waiting_bytes(self) -> int:
        """Bytes of messages that are not taken."""
        return self.subscriber.waiting_bytes

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits to be told."""
        return not self.subscriber.waiting and not self._notices

    def take(self, bytes_max: int, protocol: int) -> bytes:
        """Remove and return messages to send, about this many bytes."""
        messages = self.subscriber.take(bytes_max)
        taken = b"".join([render_message(*message, protocol) for message in messages])
        if protocol == 3 and self._notices:
            notices, self._notices = self._notices, {}
            taken += b"".join(
                [render(_shown(one), 3) for some in notices.values() for one in some]
            )
        return taken

    def notify(self, gid: int, notice: Notice) -> None:
        """Tell the client of a group's session that a request is worth repeating."""
        if waiters := self._waiters.get(gid):
            waiters.pop(0)(notice)
        elif len(notice.path) <= NOTICE_PATH_BYTES_MAX:
            self._notices.setdefault(gid, deque(maxlen=NOTICES_MAX)).append(notice)
            self._wake()

    def next_notice(self, gid: int) -> Notice | None:
        """Return the oldest one of a group's session, and forget it."""
        some = self._notices.get(gid)
        return some.popleft() if some else None

    def wait(self, gid: int, told: Callable[[Notice | None], None]) -> None:
        """Register for the next notice of a group's session. None: not any more."""
        self._waiters.setdefault(gid, []).append(told)

    def give_up(self, gid: int, told: Callable[[Notice | None], None]) -> None:
        """Wait no more, if it still does."""
        waiters = self._waiters.get(gid, [])
        if told in waiters:
            waiters.remove(told)
            told(None)

    def forget(self, gid: int) -> None:
        """Remove the notices of a session that is no longer used here."""
        self._notices.pop(gid, None)
        for told in self._waiters.pop(gid, []):
            told(None)

    def end(self) -> None:
        """Stop receiving notices."""
        self.subscriber.end()
        self.is_on = False


def _shown(notice: Notice) -> bytes:
    return push((bulk(b"retry"), bulk(notice.path), bulk(notice.command)))
