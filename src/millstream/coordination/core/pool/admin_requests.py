"""Commands of administrators in general: their arguments, their answers, and discovery.

Invariants:
1. Each command has one answer, at the latest after `ADMIN_MS_MAX`; what a replica was asked for is
   answered when the replica does, which has bounds of its own.
2. What concerns a group is done by its primary; others say where that is.

Elsewhere: each command (`pool_groups`, `pool_admin`), who may ask (the front).

Source: V2R2, "Nomenclature" (VDS).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from millstream.coordination.core.pool.directory import Seen
from millstream.coordination.core.pool.effects import (
    AdminReply,
)
from millstream.coordination.core.pool.file_format import Phase
from millstream.coordination.core.pool.gossip import Gossip
from millstream.coordination.core.pool.messages import TOMBSTONES_MAX
from millstream.coordination.core.pool.replies import (
    coord_of,
    group_entry,
    value_of,
)
from millstream.vsr.core.configuration import Configuration
from millstream.vsr.core.values import error, integer, mapping

__all__ = [
    "ADMIN_MS_MAX",
    "FRESH_MS",
    "PREFIX_MIN",
    "Asking",
    "RefusedError",
    "Words",
    "file_in",
    "first_of",
    "no_more",
    "number_in",
    "shown",
]

ADMIN_MS_MAX: Final = 10_000
"""How long other nodes may take to do their part of a command."""
FRESH_MS: Final = 5000
"""What a group's primary said within this time is news: there is one."""
FRESH_ROUNDS: Final = 3
"""Or within so many rounds of gossip, if those are set to be rare."""
PREFIX_MIN: Final = 4
"""Digits of a node's id that may stand for it, if no other one begins so."""

Words = tuple[bytes, ...]
"""Of a command."""


class RefusedError(Exception):
    """A command is not done; the value says why."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.value = error(code, text)


class _Pending(NamedTuple):
    """A command that waits for others: `done` gives the answer, `late` the one after all time."""

    ticket: int
    until_ms: float
    done: Callable[[], bytes | None]
    late: Callable[[], bytes]


class Asking(Gossip):
    """Arguments, answers, discovery."""

    def __init__(self, chance: Callable[[], float]) -> None:
        super().__init__(chance)
        self.pending: list[_Pending] = []

    # ---- answers

    def answer(self, ticket: int, value: bytes) -> None:
        """Answer an administrator."""
        self.effects.append(AdminReply(ticket, value))

    def look_after_pending(self) -> None:
        """Answer what is done, and what takes too long."""
        for pending in list(self.pending):
            value = pending.done()
            if value is None and self.now_ms >= pending.until_ms:
                value = pending.late()
            if value is not None:
                self.pending.remove(pending)
                self.answer(pending.ticket, value)

    def give_up_pending(self, value: bytes) -> None:
        """Answer what has taken too long, whatever it was."""
        for pending in [one for one in self.pending if self.now_ms >= one.until_ms]:
            pending.late()
            self.pending.remove(pending)
            self.answer(pending.ticket, value)

    def wait(
        self,
        ticket: int,
        done: Callable[[], bytes | None],
        late: Callable[[], bytes],
        for_ms: float = ADMIN_MS_MAX,
    ) -> None:
        """Answer once `done` gives the answer, or with `late` after all time."""
        self.pending.append(_Pending(ticket, self.now_ms + for_ms, done, late))

    # ---- arguments

    def group_named(self, text: bytes) -> bytes:
        """Return the group called so, or with this id in hex."""
        if len(text) == 32 and (group_id := _hex(text)) in self.tables.foundings:
            return group_id
        if text.isdigit() and len(text) < 20 and (found := self.called(int(text))):
            if len(found) == 1:
                return found[0]
            ids = ", ".join(group_id.hex() for group_id in found)
            raise RefusedError("CONFLICT", f"{len(found)} groups are called so: {ids}")
        raise RefusedError("ERROR_DOES_NOT_EXISTS", f"no group {shown(text)} is known here")

    def node_named(self, text: bytes) -> bytes:
        """Return the node of the pool whose id begins so."""
        text = text.lower()
        found = [node for node in sorted(self.tables.nodes) if node.hex().startswith(shown(text))]
        found = [node for node in found if self.tables.node(node) is not None]
        if len(text) < PREFIX_MIN or len(found) != 1:
            raise RefusedError(
                "BADARG",
                f"{shown(text)} does not begin the id of one node: ADMIN NODES shows them",
            )
        return found[0]

    def need_room_for_a_tombstone(self) -> None:
        """Refuse if nothing more can be refused for ever."""
        if len(self.tables.tombstones) >= TOMBSTONES_MAX:
            text = f"a pool deletes at most {TOMBSTONES_MAX} groups and nodes"
            raise RefusedError("QUOTA", text)

    def was_removed(self, text: bytes) -> bool:
        """Return whether the id of a node, or a group, that is to be no more begins so."""
        wanted = shown(text.lower())
        removed = sum(one.hex().startswith(wanted) for one in self.tables.tombstones)
        return len(text) >= PREFIX_MIN and removed == 1

    def members_named(self, words: Words) -> tuple[bytes, ...]:
        """Return nodes in order, none of them twice."""
        members = tuple(sorted(self.node_named(word) for word in words))
        if len(set(members)) < len(members):
            raise RefusedError("BADCONFIG", "a node is named twice")
        return members

    def led_here(self, group_id: bytes) -> Configuration:
        """Return the configuration of a group that this node leads."""
        state = self.states.get(group_id)
        if state is None or not state.leads:
            raise RefusedError("NOTPRIMARY", self.where_text(group_id))
        return state.configuration

    def open_here(self, text: bytes) -> bytes:
        """Return a group whose replica is on this node."""
        group_id = self.group_named(text)
        hosted = self.hosted.get(group_id)
        if hosted is None or hosted.phase is not Phase.OPEN:
            raise RefusedError("NOTPRIMARY", self.where_text(group_id))
        return group_id

    # ---- where groups are

    def is_news(self, seen: Seen) -> bool:
        """Return whether a group's primary has said this lately."""
        return self.now_ms - seen.said_ms < max(FRESH_MS, FRESH_ROUNDS * self.round_ms)

    def leads(self, group_id: bytes) -> bool:
        """Return whether this node leads a group."""
        state = self.states.get(group_id)
        return state is not None and state.leads

    def primary_of(self, group_id: bytes) -> str | None:
        """Return where the primary of a group is for clients, as this node has heard.

        It is not this node, whatever was heard, unless this node does lead.
        """
        seen = self.directory.get(group_id)
        if seen is None or (seen.primary == self.id and not self.leads(group_id)):
            return None
        return coord_of(self.tables, seen.primary)

    def where_text(self, group_id: bytes) -> str:
        """Return what stands behind NOTPRIMARY."""
        seen, number = self.directory.get(group_id), self.tables.number_of(group_id)
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
                    (b"/" + root, integer(n)) for root, n in self.namespaces.items()
                    if may_see(root)
                )  # fmt: skip
            if argv[1:2] and argv[1].startswith(b"/"):
                return self._vds_of(argv[1], may_see)
            groups = [self.group_named(word) for word in argv[1:2]] or sorted(
                self.tables.foundings, key=lambda group: (self.tables.number_of(group), group)
            )
        except RefusedError as refused:
            return refused.value
        return value_of({self.name_of(group): self.entry_of(group) for group in groups})

    def _vds_of(self, path: bytes, may_see: Callable[[bytes], bool | None]) -> bytes:
        """Return where the namespace of a path is."""
        root = path[1:].partition(b"/")[0]
        number = self.group_with(root)
        if number is None or may_see(root) is False:
            text = f"no namespace /{shown(root)} is known here"
            raise RefusedError("ERROR_DOES_NOT_EXISTS", text)
        group_id = self.group_named(b"%d" % number)
        return mapping(((b"/" + root, value_of(self.entry_of(group_id))),))

    def name_of(self, group_id: bytes) -> str:
        """Return what a group is called, so that it is told from others."""
        number = self.tables.number_of(group_id)
        return str(number) if self.called(number) == [group_id] else group_id.hex()

    def entry_of(self, group_id: bytes) -> dict[str, Any]:
        """Return where a group is."""
        founding, seen = self.tables.foundings[group_id], self.directory.get(group_id)
        entry = group_entry(self.tables, founding, seen, self.now_ms)
        return {**entry, "primary": self.primary_of(group_id)}


def shown(text: bytes) -> str:
    """Return words as text, whatever they are."""
    return text.decode(errors="replace")


def file_in(text: bytes) -> str:
    """Return the name of a file: exactly what was written, or it is refused."""
    try:
        name = text.decode()
    except UnicodeDecodeError:
        name = ""
    if not name or "\0" in name:
        raise RefusedError("BADARG", "a file's name is UTF-8 without a NUL")
    return name


def _hex(text: bytes) -> bytes:
    try:
        return bytes.fromhex(text.decode("ascii"))
    except ValueError:
        return b""


def number_in(text: bytes, least: int, most: int) -> int:
    """Return a number within bounds."""
    if not text.isdigit() or len(text) > 20 or not least <= int(text) <= most:
        raise RefusedError("BADARG", f"{shown(text)} is no number from {least} to {most}")
    return int(text)


def first_of(words: Words) -> bytes:
    """Return the first word: which group."""
    if not words:
        raise RefusedError("BADARG", "which group?")
    return words[0]


def no_more(words: Words) -> None:
    """Refuse words that mean nothing."""
    if words:
        raise RefusedError("BADARG", f"{shown(words[0])} is too much")
