"""Subscribers to a bucket's changes.

Invariants:
1. Subscribers are called once per batch of changes, not once per change. They only schedule work.

Elsewhere: the changes themselves (the partitions).
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Notifications"]


class Notifications:
    """Subscribers by the kind of event."""

    def __init__(self) -> None:
        self._subscribers: list[Callable[[], None]] = []
        self._durable_subscribers: list[Callable[[], None]] = []
        self._map_subscribers: list[Callable[[], None]] = []

    def subscribe(self, callback: Callable[[], None]) -> None:
        """Call `callback` after each batch of changes."""
        self._subscribers.append(callback)

    def subscribe_durable(self, callback: Callable[[], None]) -> None:
        """Call `callback` each time changes have become durable."""
        self._durable_subscribers.append(callback)

    def subscribe_map(self, callback: Callable[[], None]) -> None:
        """Call `callback` after each new map."""
        self._map_subscribers.append(callback)

    def unsubscribe(self, callback: Callable[[], None]) -> None:
        """Reverse all subscriptions; harmless if there was none."""
        every = (self._subscribers, self._durable_subscribers, self._map_subscribers)
        for subscribers in every:
            if callback in subscribers:
                subscribers.remove(callback)

    def tell_changed(self) -> None:
        """Report that partitions changed."""
        for callback in tuple(self._subscribers):
            callback()

    def tell_durable(self) -> None:
        """Report that changes became durable."""
        for callback in tuple(self._durable_subscribers):
            callback()

    def tell_map(self) -> None:
        """Report that there is another map."""
        for callback in tuple(self._map_subscribers):
            callback()
