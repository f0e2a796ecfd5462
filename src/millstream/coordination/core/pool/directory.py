"""Where the groups of a pool are, as far as this node knows: what discovery (VDS) returns.

Invariants:
1. Of two reports about a group, the one of the later epoch and view counts; of equal ones the
   newer.
2. That a group was forked is stored durably, so members that were left behind learn it even after
   a restart.
3. The age of a report counts from when the primary of its group sent it. Passing it on does not
   make it younger.

Elsewhere: the groups (`tables`), who may ask (the RESP session).

Source: V2R2, "Nomenclature" (VDS).
"""

from __future__ import annotations

from collections.abc import Container
from typing import Final, NamedTuple

from millstream.coordination.core.pool.file_format import Fork
from millstream.coordination.core.pool.messages import Sighting
from millstream.vsr.core.configuration import Configuration, generation

__all__ = ["Directory", "GroupStatus"]


_OLD_MS: Final = 86_400_000.0
"""How old a word is that was kept over a restart: at least so much may have passed."""


class GroupStatus(NamedTuple):
    """What was heard of a group last; `said_ms` by this node's clock."""

    epoch: int
    view: int
    members: tuple[bytes, ...]
    said_ms: float
    elements: int = 0

    @property
    def primary(self) -> bytes:
        """Who leads there."""
        return Configuration(self.epoch, self.members).primary(self.view)


class Directory:
    """Of one node."""

    def __init__(self) -> None:
        self._seen: dict[bytes, GroupStatus] = {}
        self.forks_total = 0
        """How often a later fork of a group was heard of: what is to be kept has changed."""

    def note(self, group_id: bytes, seen: GroupStatus) -> bool:
        """Take a word about a group; return whether the group has moved on."""
        known = self._seen.get(group_id)
        if known is not None and (known.epoch, known.view) >= (seen.epoch, seen.view):
            if known[:2] == seen[:2] and seen.said_ms > known.said_ms:
                self._seen[group_id] = seen
            return False
        if generation(seen.epoch) > (0 if known is None else generation(known.epoch)):
            self.forks_total += 1
        self._seen[group_id] = seen
        return True

    def forks(self) -> tuple[Fork, ...]:
        """Return what is kept."""
        return tuple(
            Fork(group_id, seen.epoch, seen.members)
            for group_id, seen in sorted(self._seen.items())
            if generation(seen.epoch)
        )

    def load(self, forks: tuple[Fork, ...], groups: Container[bytes], now_ms: float) -> None:
        """Take what was kept."""
        for group_id, epoch, members in forks:
            if group_id in groups:
                self.note(group_id, GroupStatus(epoch, 0, members, now_ms - _OLD_MS))

    def get(self, group_id: bytes) -> GroupStatus | None:
        """Return the last word about a group."""
        return self._seen.get(group_id)

    def forget(self, group_id: bytes) -> None:
        """Forget a group."""
        self._seen.pop(group_id, None)

    def sightings(self, now_ms: float) -> tuple[Sighting, ...]:
        """Return all of it, to be passed on."""
        return tuple(
            Sighting(
                group_id,
                seen.epoch,
                seen.view,
                seen.members,
                max(0, int(now_ms - seen.said_ms)),
                seen.elements,
            )
            for group_id, seen in sorted(self._seen.items())
        )

    def hear(
        self, sightings: tuple[Sighting, ...], groups: Container[bytes], now_ms: float
    ) -> None:
        """Take what another node has heard of groups that are known here."""
        for group_id, epoch, view, members, age_ms, elements in sightings:
            if group_id in groups and members:
                self.note(group_id, GroupStatus(epoch, view, members, now_ms - age_ms, elements))
