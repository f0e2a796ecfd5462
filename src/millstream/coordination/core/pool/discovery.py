"""The groups and their places, as discovery (VDS) returns them, and groups by name.

Invariants:
1. The primary of a group executes what concerns it. Other nodes answer with its address.

Elsewhere: reports about groups (`directory`), who may ask (the RESP session).

Source: V2R2, "Nomenclature" (VDS).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from millstream.coordination.core.pool.admin_arguments import (
    RefusedError,
    Words,
    group_id_in,
    shown,
)
from millstream.coordination.core.pool.directory import GroupStatus
from millstream.coordination.core.pool.file_format import Phase
from millstream.coordination.core.pool.heartbeats import Heartbeats
from millstream.coordination.core.pool.replies import coord_of, group_entry, value_of
from millstream.coordination.core.pool.state import PoolState
from millstream.coordination.core.pool.system_board import SystemBoard
from millstream.vsr.core.configuration import Configuration
from millstream.vsr.core.values import integer, mapping

__all__ = ["FRESH_MS", "Discovery"]

FRESH_MS: Final = 5000
"""What a group's primary said within this time is news: there is one."""
FRESH_ROUNDS: Final = 3
"""Or within so many rounds of gossip, if those are set to be rare."""


class Discovery:
    """As far as this node has heard."""

    def __init__(self, state: PoolState, board: SystemBoard, heartbeats: Heartbeats) -> None:
        self.state = state
        self._board = board
        self._heartbeats = heartbeats

    # ---- which group is meant

    def called(self, number: int) -> list[bytes]:
        """Return the groups of this number that have begun; if none has, those that are to."""
        found = self.state.tables.numbered(number)
        return found if len(found) < 2 else [one for one in found if self.has_begun(one)] or found

    def has_begun(self, group_id: bytes) -> bool:
        """Return whether it runs here, or was heard to have a primary."""
        return self.is_open_here(group_id) or self.state.directory.get(group_id) is not None

    def is_open_here(self, group_id: bytes) -> bool:
        """Return whether its replica is on this node."""
        hosted = self.state.hosted.get(group_id)
        return hosted is not None and hosted.phase is Phase.OPEN

    def group_named(self, text: bytes) -> bytes:
        """Return the group called so, or with this id in hex."""
        if len(text) == 32 and (group_id := group_id_in(text)) in self.state.tables.foundings:
            return group_id
        if text.isdigit() and len(text) < 20 and (found := self.called(int(text))):
            if len(found) == 1:
                return found[0]
            ids = ", ".join(group_id.hex() for group_id in found)
            raise RefusedError("CONFLICT", f"{len(found)} groups have this name: {ids}")
        raise RefusedError("ERROR_DOES_NOT_EXISTS", f"no group {shown(text)} is known here")

    def led_here(self, group_id: bytes) -> Configuration:
        """Return the configuration of a group that this node leads."""
        if not self.state.leads(group_id):
            raise RefusedError("NOTPRIMARY", self.where_text(group_id))
        return self.state.replicas[group_id].configuration

    def open_here(self, text: bytes) -> bytes:
        """Return a group whose replica is on this node."""
        group_id = self.group_named(text)
        if not self.is_open_here(group_id):
            raise RefusedError("NOTPRIMARY", self.where_text(group_id))
        return group_id

    # ---- where groups are

    def is_news(self, seen: GroupStatus) -> bool:
        """Return whether a group's primary has said this lately."""
        return self.state.now_ms - seen.said_ms < max(
            FRESH_MS, FRESH_ROUNDS * self._heartbeats.round_ms
        )

    def primary_of(self, group_id: bytes) -> str | None:
        """Return where the primary of a group is for clients, as this node has heard.

        It is not this node, whatever was heard, unless this node does lead.
        """
        seen = self.state.directory.get(group_id)
        if seen is None or (seen.primary == self.state.id and not self.state.leads(group_id)):
            return None
        return coord_of(self.state.tables, seen.primary)

    def where_text(self, group_id: bytes) -> str:
        """Return the address part of NOTPRIMARY."""
        seen, number = self.state.directory.get(group_id), self.state.tables.number_of(group_id)
        if seen is None:
            return f"{number} 0:0 ?"
        return f"{number} {seen.epoch}:{seen.view} {self.primary_of(group_id) or '?'}"

    def vds(
        self, argv: Words, may_see: Callable[[bytes], bool | None] = lambda _root: True
    ) -> bytes:
        """Return the map of groups, or of the one named; `argv` begins with VDS.

        Of a path: where its namespace is; of `/`: which group has which namespace. `may_see` says
        whether the asker may read a namespace, None if that is not known here: then a path is
        answered, since its asker knows the name, and `/` leaves the name out.
        """
        try:
            if argv[1:2] == (b"/",):
                return mapping(
                    (b"/" + root, integer(n)) for root, n in self._board.namespaces.items()
                    if may_see(root)
                )  # fmt: skip
            if argv[1:2] and argv[1].startswith(b"/"):
                return self._vds_of(argv[1], may_see)
            groups = [self.group_named(word) for word in argv[1:2]] or sorted(
                self.state.tables.foundings,
                key=lambda group: (self.state.tables.number_of(group), group),
            )
        except RefusedError as refused:
            return refused.value
        return value_of({self.name_of(group): self.entry_of(group) for group in groups})

    def _vds_of(self, path: bytes, may_see: Callable[[bytes], bool | None]) -> bytes:
        """Return where the namespace of a path is."""
        root = path[1:].partition(b"/")[0]
        number = self._board.group_with(root)
        if number is None or may_see(root) is False:
            text = f"no namespace /{shown(root)} is known here"
            raise RefusedError("ERROR_DOES_NOT_EXISTS", text)
        group_id = self.group_named(b"%d" % number)
        return mapping(((b"/" + root, value_of(self.entry_of(group_id))),))

    def name_of(self, group_id: bytes) -> str:
        """Return what a group is called, so that it is told from others."""
        number = self.state.tables.number_of(group_id)
        return str(number) if self.called(number) == [group_id] else group_id.hex()

    def entry_of(self, group_id: bytes) -> dict[str, Any]:
        """Return where a group is."""
        founding, seen = self.state.tables.foundings[group_id], self.state.directory.get(group_id)
        entry = group_entry(self.state.tables, founding, seen, self.state.now_ms)
        return {**entry, "primary": self.primary_of(group_id)}
