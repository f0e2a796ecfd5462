"""The subscribers of this member: committed updates become messages, in order, each once.

Nothing here is replicated. A connection has a `Subscriber`, the state of a group an `Audience`.
`on_entry` takes the updates of an entry, `Subscriber.take` returns messages.

Invariants:
1. A subscription receives the updates of its element and scope from one LSN on: in LSN order,
   within an entry in the order they happened, each once, and only those that its user may read
   (`updates.seen_by`). Otherwise it ends, and its last message says so.
2. At most `QUEUED_MAX` messages with `QUEUED_BYTES_MAX` bytes wait on a connection, or those of
   one entry. After them there is one last message for each subscription.
3. A subscription ends between two entries: the LSN in an `overrun` is that of the last entry that
   was queued whole.

Elsewhere: updates that are kept for resuming (`marks`), the right to subscribe (`subscriptions`),
messages on the wire (`resp`).

Source: V2R2, "Subscribe to an element".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from millstream.coordination.core.namespace.state.run import Asker, Notice
from millstream.coordination.core.namespace.state.updates import (
    Place,
    Sight,
    Update,
    as_seen,
    payload,
    remark,
    seen_by,
)
from millstream.vsr.core.versions import Version

__all__ = [
    "PROGRESS_MS",
    "QUEUED_BYTES_MAX",
    "QUEUED_MAX",
    "SUBSCRIPTIONS_MAX",
    "Audience",
    "Message",
    "Subscriber",
    "Subscription",
    "UsedSession",
]

QUEUED_MAX: Final = 10_000
"""Messages that wait on one connection."""
QUEUED_BYTES_MAX: Final = 8 * 1024 * 1024
"""Most bytes of queued messages."""
SUBSCRIPTIONS_MAX: Final = 1000
"""Most subscriptions of one connection."""
PROGRESS_MS: Final = 10_000.0
"""After this time without a message, a message reports the progress of the state."""


class Message(NamedTuple):
    """What one subscription is told; `path` is the one that was asked for."""

    path: bytes
    payload: bytes


@dataclass(slots=True, eq=False)
class Subscription:
    """One path of one connection; messages are about what is later than `after_lsn`."""

    number: int
    subscriber: Subscriber
    path: bytes
    place: Place
    with_data: bool
    after_lsn: int
    is_heard: bool = True
    """Whether it got a message since the last check, or has just begun."""
    quiet_since_ms: float = 0.0


class UsedSession(Protocol):
    """A session that a connection uses, until another one has resumed it."""

    number: int
    instance: bytes
    is_moved: bool


class Subscriber:
    """One connection: its subscriptions, and the messages that wait to be sent.

    `wake` is called when there is something to take where there was nothing. `asker`: whose
    connection it is. `sessions`: those that are used on it, by group.
    """

    def __init__(
        self, wake: Callable[[], None], asker: Asker,
        sessions: Mapping[int, UsedSession] | None = None,
    ) -> None:  # fmt: skip
        self.asker = asker
        self._sessions: Mapping[int, UsedSession] = {} if sessions is None else sessions
        self.subscriptions: dict[bytes, tuple[Audience, Subscription]] = {}
        self._wake = wake
        self._waiting: deque[Message] = deque()
        self._waiting_bytes = 0

    def __len__(self) -> int:
        return len(self.subscriptions)

    def uses(self, client: bytes) -> bool:
        """Return whether a session, as clients see it, is used on the connection."""
        return client == self.asker.client or any(
            client == Asker(one.number, 0, one.instance).client
            for one in self._sessions.values() if not one.is_moved
        )  # fmt: skip

    def take(self, bytes_max: int) -> list[Message]:
        """Remove and return messages to send, about this many bytes of them."""
        taken, size = [], 0
        while self._waiting and size < bytes_max:
            message = self._waiting.popleft()
            size += len(message.payload)
            taken.append(message)
        self._waiting_bytes -= size
        return taken

    @property
    def waiting(self) -> int:
        """How many messages wait."""
        return len(self._waiting)

    @property
    def waiting_bytes(self) -> int:
        """How many bytes they have."""
        return self._waiting_bytes

    def belong_to(self, asker: Asker, *, may_hear: bool) -> None:
        """Make this the connection of another user, who may receive less, or nothing."""
        self.asker = asker
        for audience, subscription in list(self.subscriptions.values()):
            audience.look_at(subscription, may_hear=may_hear)

    def has_room_for(self, payloads: Sequence[bytes]) -> bool:
        """Return whether so much more may wait; to one that has nothing, all may be said."""
        return not self._waiting or (
            len(self._waiting) + len(payloads) <= QUEUED_MAX
            and self._waiting_bytes + sum(map(len, payloads)) <= QUEUED_BYTES_MAX
        )

    def say(self, path: bytes, payload: bytes) -> None:
        """Queue a message."""
        self._waiting.append(Message(path, payload))
        self._waiting_bytes += len(payload)
        if len(self._waiting) == 1:
            self._wake()

    def end(self, path: bytes | None = None) -> list[bytes]:
        """End the subscription of a path, or all; return the paths that were ended.

        What waits of them is not sent any more, nor of one that has ended before.
        """
        paths = list(self.subscriptions) if path is None else [path]
        ended = [each for each in paths if each in self.subscriptions]
        for each in ended:
            audience, subscription = self.subscriptions[each]
            audience.remove(subscription)
        kept = [message for message in self._waiting if path not in (None, message.path)]
        self._waiting = deque(kept)
        self._waiting_bytes = sum(len(message.payload) for message in kept)
        return ended


class Audience:
    """All subscriptions to the state of one group on this member.

    `may_hear` says whether a subscription's connection may read its element now.
    """

    def __init__(self) -> None:
        self.may_hear: Callable[[Subscription], bool] = lambda _: True
        self.on_notice: Callable[[Notice], None] = lambda _: None
        """Called for sessions whose requests wait, and are worth repeating."""
        self.version_at: Callable[[int], Version | None] = lambda _: None
        """The version of an entry, None where it is not known: it names the history."""
        self._at: dict[Place, dict[int, Subscription]] = {}
        self._lsn = 0
        self._number = 0

    @property
    def lsn(self) -> int:
        """The last entry of which all that happened was told."""
        return self._lsn

    def reach(self, lsn: int) -> None:
        """Note the position of the state, also after entries without effect or subscribers."""
        self._lsn = max(self._lsn, lsn)

    @property
    def is_empty(self) -> bool:
        """Whether there are no subscribers."""
        return not self._at

    def __contains__(self, place: Place) -> bool:
        return place in self._at

    def skip(self) -> None:
        """Have the state go on where it was not reached entry by entry, perhaps further back.

        What was skipped cannot be told, so all subscriptions end: they can be resumed.
        """
        for place in list(self._at):
            for subscription in list(self._at[place].values()):
                last_lsn = max(self._lsn, subscription.after_lsn)
                self._end(subscription, self._remark("overrun", last_lsn))
        self._lsn = 0

    def add(
        self,
        subscriber: Subscriber,
        path: bytes,
        place: Place,
        *,
        with_data: bool,
        after_lsn: int | None,
        kept: Sequence[Update] = (),
    ) -> None:
        """Begin a subscription with what happened after an LSN; `kept` is what is known of it.

        Without an LSN it begins now, and says so. One to the same path is replaced.
        """
        subscriber.end(path)
        begin_lsn = self._lsn if after_lsn is None else after_lsn
        self._number += 1
        subscription = Subscription(self._number, subscriber, path, place, with_data, begin_lsn)
        subscriber.subscriptions[path] = (self, subscription)
        self._at.setdefault(place, {})[self._number] = subscription
        if after_lsn is None:
            subscriber.say(path, self._remark("start", begin_lsn))
        self._resume(subscription, [update for update in kept if update.lsn > begin_lsn])

    def _resume(self, subscription: Subscription, kept: Sequence[Update]) -> None:
        last_lsn, at = subscription.after_lsn, 0
        while at < len(kept):
            lsn, end = kept[at].lsn, at
            while end < len(kept) and kept[end].lsn == lsn:
                end += 1
            payloads = _payloads(kept[at:end], _sights(kept[at:end], subscription), subscription)
            if not self._tell(subscription, payloads):
                return self._end(subscription, self._remark("overrun", last_lsn))
            last_lsn, at = lsn, end
        return None

    def remove(self, subscription: Subscription) -> None:
        """Forget a subscription; what waits of it stays."""
        there = self._at.get(subscription.place, {})
        there.pop(subscription.number, None)
        if not there:
            self._at.pop(subscription.place, None)
        subscription.subscriber.subscriptions.pop(subscription.path, None)

    def _end(self, subscription: Subscription, last_words: bytes) -> None:
        self.remove(subscription)
        subscription.subscriber.say(subscription.path, last_words)

    def on_entry(self, lsn: int, heard: Mapping[Place, Sequence[Update]]) -> None:
        """Tell what an entry did; those that did something come by in order."""
        assert lsn > self._lsn
        for place, updates in heard.items() if self._at else ():
            there = self._at.get(place)
            if there is None:
                continue
            made: dict[tuple[bool, tuple[Sight, ...]], list[bytes]] = {}
            for subscription in list(there.values()):
                if subscription.after_lsn >= lsn:
                    continue
                sights = _sights(updates, subscription)
                seen = subscription.with_data, sights
                if seen not in made:
                    made[seen] = _payloads(updates, sights, subscription)
                if not self._tell(subscription, made[seen]):
                    last_lsn = max(self._lsn, subscription.after_lsn)
                    self._end(subscription, self._remark("overrun", last_lsn))
        self._lsn = lsn

    @staticmethod
    def _tell(subscription: Subscription, payloads: Sequence[bytes]) -> bool:
        subscriber = subscription.subscriber
        if not subscriber.has_room_for(payloads):
            return False
        for text in payloads:
            subscriber.say(subscription.path, text)
        subscription.is_heard = True
        return True

    def forget(self, places: Iterable[Place]) -> None:
        """End what is about elements that are gone: their last messages said so."""
        for place in places:
            for subscription in list(self._at.get(place, {}).values()):
                self.remove(subscription)

    def deny(self, places: Iterable[Place]) -> None:
        """End those of these places that may hear no more."""
        for place in places:
            for subscription in list(self._at.get(place, {}).values()):
                self.look_at(subscription)

    def look_at(self, subscription: Subscription, *, may_hear: bool = True) -> None:
        """End a subscription if it may hear no more."""
        if not may_hear or not self.may_hear(subscription):
            self._end(subscription, remark("denied", self._lsn))

    def _remark(self, op: str, lsn: int) -> bytes:
        return remark(op, lsn, self.version_at(lsn))

    def tick(self, now_ms: float, lsn: int) -> None:
        """Send the position `lsn` to subscribers that got no message for a long time."""
        self.reach(lsn)
        for there in self._at.values():
            for subscription in there.values():
                if subscription.is_heard:
                    subscription.is_heard, subscription.quiet_since_ms = False, now_ms
                elif now_ms - subscription.quiet_since_ms >= PROGRESS_MS:
                    subscription.quiet_since_ms = now_ms
                    text = self._remark("progress", max(self._lsn, subscription.after_lsn))
                    if subscription.subscriber.has_room_for((text,)):
                        subscription.subscriber.say(subscription.path, text)


def _sights(updates: Sequence[Update], subscription: Subscription) -> tuple[Sight, ...]:
    subscriber = subscription.subscriber
    return tuple([seen_by(update, subscriber.asker, subscriber.uses) for update in updates])


def _payloads(
    updates: Sequence[Update], sights: Sequence[Sight], subscription: Subscription
) -> list[bytes]:
    seen, with_data = as_seen(updates, sights), subscription.with_data
    return [payload(update, part, len(seen), with_data) for part, update in enumerate(seen)]
