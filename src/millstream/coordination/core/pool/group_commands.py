"""Commands about groups: founding, changing and deleting them.

Invariants:
1. A group is founded by one record. A repeated command continues with it.
2. A group is deleted only after a quorum of its members has confirmed this primary, unless it
   never began and another group has its number. OK means that a quorum will refuse it forever.

Elsewhere: changes of members (`vsr.core.replica`), the effects of founding and deleting a group
(`hosted_groups`).

Source: V2R2, "Initial Bootstrap" and "Reconfiguration".
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import count
from typing import Final

from millstream.coordination.core.pool.admin_arguments import (
    PREFIX_MIN,
    RefusedError,
    Words,
    file_in,
    first_of,
    need_room_for_a_tombstone,
    node_named,
    nodes_named,
    number_in,
    shown,
)
from millstream.coordination.core.pool.admin_requests import AdminRequests
from millstream.coordination.core.pool.continuations import Continuations
from millstream.coordination.core.pool.discovery import Discovery
from millstream.coordination.core.pool.effects import (
    FIRST_GROUP,
    AskGroup,
    AskRestore,
    Refusal,
    Warn,
)
from millstream.coordination.core.pool.hosted_groups import HostedGroups
from millstream.coordination.core.pool.messages import GROUPS_MAX, Founding
from millstream.coordination.core.pool.replica_commands import ReplicaCommands
from millstream.coordination.core.pool.replies import value_of
from millstream.coordination.core.pool.state import PoolState
from millstream.coordination.core.pool.system_board import SystemBoard
from millstream.vsr.core.configuration import SIZES, Configuration
from millstream.vsr.core.effects import (
    Code,
    Force,
    MovePrimary,
    Read,
    Reconfigure,
    Reply,
)
from millstream.vsr.core.entries import NOTHING
from millstream.vsr.core.hard_state import founded
from millstream.vsr.core.values import OK, error

__all__ = ["GroupCommands"]

_SALT_MAX: Final = 1 << 53


class GroupCommands:
    """Those of GROUP, and RESTORE."""

    def __init__(
        self,
        state: PoolState,
        continuations: Continuations,
        board: SystemBoard,
        groups: HostedGroups,
        discovery: Discovery,
        requests: AdminRequests,
        replicas: ReplicaCommands,
    ) -> None:
        self.state = state
        self._continuations = continuations
        self._board = board
        self._groups = groups
        self._discovery = discovery
        self._requests = requests
        self._replicas = replicas

    # ---- founding a group

    def create(self, ticket: int, words: Words) -> bytes | None:
        """Found a group of these members."""
        number, words = self._new_number(words), words[1:]
        has_journal = True
        if len(words) > 2 and words[-2].upper() == b"JOURNAL":
            journal, words = words[-1].lower(), words[:-2]
            if journal not in (b"fsync", b"none"):
                raise RefusedError("BADARG", "JOURNAL is fsync or none")
            has_journal = journal == b"fsync"
        members = nodes_named(self.state.tables, words)
        if len(members) not in (1, *SIZES):
            raise RefusedError("BADCONFIG", "a group has 1, 3, 5 or 7 members")
        if len(members) == 1 and not has_journal:
            raise RefusedError(
                "BADCONFIG",
                "without a journal a group of one member is lost at its first restart: use "
                "JOURNAL fsync, or name three nodes",
            )
        founding = self._founding_of(number, members, has_journal=has_journal)
        group_id = founding.group_id
        self._groups.begin_founding(founding)

        def over(value: bytes) -> bytes:
            self._groups.end_founding(group_id)
            return value

        def done() -> bytes | None:
            if refusal := self._groups.refusals.get(group_id):
                return over(error("EXISTS", f"a member has not founded it: {refusal}"))
            formed = self._groups.formed.get(group_id, {})
            is_done = all(member in formed for member in members)
            return over(OK) if is_done or self._groups.has_moved_on(group_id) else None

        def late() -> bytes:
            formed = self._groups.formed.get(group_id, {})
            missing = " ".join(member.hex() for member in members if member not in formed)
            return over(error("NOTREADY", f"{missing}: repeat the command to continue"))

        self._requests.wait(ticket, done, late)
        return None

    def _new_number(self, words: Words) -> int:
        if not words:
            raise RefusedError("BADARG", "give the number of the group")
        return number_in(words[0], 1, (1 << 63) - 1)

    def _founding_of(
        self, number: int, members: tuple[bytes, ...], *, has_journal: bool
    ) -> Founding:
        """Return the record of a new group, or the one there is if it is the same."""
        for group_id in self._discovery.called(number):
            founding = self.state.tables.foundings[group_id]
            if founding.members != members or founding.has_journal != has_journal:
                raise RefusedError("EXISTS", f"there is another group {number}")
            return founding
        if len(self.state.tables.foundings) >= GROUPS_MAX:
            raise RefusedError("QUOTA", f"a pool has at most {GROUPS_MAX} groups")
        # Who is asked again, or is asked by two, founds the same group.
        salts = (Founding(number, members, has_journal, salt) for salt in count())
        return next(one for one in salts if one.group_id not in self.state.tables.tombstones)

    def restore(self, ticket: int, words: Words) -> None:
        """Found a group of this node with the state in a file."""
        if len(words) != 2:
            raise RefusedError("BADARG", "ADMIN RESTORE <number> <file>")
        number, file = self._new_number(words), file_in(words[1])
        if self.state.tables.numbered(number):
            raise RefusedError("EXISTS", f"there is a group {number}")
        founding = self._founding_of(number, (self.state.id,), has_journal=True)
        founding = founding._replace(salt=int(self.state.chance() * _SALT_MAX))
        group_id = founding.group_id

        def restored(answer: object) -> None:
            if isinstance(answer, Refusal):
                self._requests.answer(ticket, error(*answer))
                return
            if self.state.tables.numbered(number) or not self.state.tables.note_founding(founding):
                self._groups.drop_folder(group_id)
                text = "there are too many groups now, or another one with its number"
                self._requests.answer(ticket, error("CONFLICT", f"{text}; nothing is restored"))
                return
            self._groups.restored(founding)
            self._requests.answer(ticket, value_of(answer))

        hard_state = founded(group_id, self.state.id, founding.members)
        question = self._continuations.next_ticket(restored)
        self.state.effects.append(AskRestore(question, founding, hard_state, file))

    # ---- changing a group

    def reconfig(self, ticket: int, words: Words) -> None:
        """Change the members to these."""
        group_id, words = self._discovery.group_named(first_of(words)), words[1:]
        now = self._discovery.led_here(group_id)
        expected = now.epoch
        if len(words) > 2 and words[-2].upper() == b"EPOCH":
            expected, words = number_in(words[-1], 0, 0xFFFFFFFF), words[:-2]
        members = nodes_named(self.state.tables, words)
        if expected != now.epoch:  # also of a repeat: whoever asked does not know of this epoch
            raise RefusedError("CONFLICT", f"it is in epoch {now.epoch}")
        self._change(ticket, group_id, members)

    def replace(self, ticket: int, words: Words) -> None:
        """Put one node in the place of another."""
        if len(words) != 3:
            raise RefusedError("BADARG", "ADMIN GROUP REPLACE <group> <old node> <new node>")
        group_id = self._discovery.group_named(words[0])
        members, old = self._discovery.led_here(group_id).members, self._old(group_id, words[1])
        new = node_named(self.state.tables, words[2])
        if old not in members and new not in members:
            raise RefusedError("BADCONFIG", f"{shown(words[1])} is no member of this group")
        if old != new and old in members and new in members:
            raise RefusedError("BADCONFIG", f"{shown(words[2])} is a member already")
        self._change(ticket, group_id, {*members, new} - ({old} - {new}))

    def add(self, ticket: int, words: Words) -> None:
        """Add members."""
        group_id = self._discovery.group_named(first_of(words))
        members = self._discovery.led_here(group_id).members
        self._change(ticket, group_id, {*members, *nodes_named(self.state.tables, words[1:])})

    def remove(self, ticket: int, words: Words) -> None:
        """Remove members; those of the epoch before are: it is said again, perhaps."""
        group_id = self._discovery.group_named(first_of(words))
        now = self._discovery.led_here(group_id)
        if not words[1:]:
            raise RefusedError("BADARG", "ADMIN GROUP REMOVE <group> <node> [<node> ...]")
        old = {self._old(group_id, word) for word in words[1:]}
        if strangers := old.difference(now.everybody):
            raise RefusedError("BADCONFIG", f"{min(strangers).hex()} is no member of this group")
        self._change(ticket, group_id, {*now.members} - old)

    def _old(self, group_id: bytes, text: bytes) -> bytes:
        """Return the node that is to be removed: a member, or one that was or could be one."""
        wanted = shown(text.lower())
        members = self._discovery.led_here(group_id).members
        for among in (members, self.state.tables.nodes, self.state.tables.tombstones):
            found = [one for one in among if one.hex().startswith(wanted)]
            if len(text) >= PREFIX_MIN and len(found) == 1:
                return found[0]
        raise RefusedError("BADCONFIG", f"{wanted} is no member of this group")

    def _change(self, ticket: int, group_id: bytes, wanted: Collection[bytes]) -> None:
        """Let the primary, which is here, change the members, unless they are these already."""
        epoch = self._discovery.led_here(group_id).epoch
        members = tuple(sorted(wanted))
        most, before = (
            (n - 1) // 2 for n in (len(members), len(self._discovery.led_here(group_id).members))
        )

        def changed(reply: Reply) -> None:
            now = int(reply.value) if reply.value.isdigit() else epoch + 1
            said = [f"{most} losses are survived now, not {before}"] if most < before else []
            self._requests.answer(ticket, value_of([now, list(members), *said]))

        self._replicas.ask_group(
            ticket, group_id, lambda n: Reconfigure(n, members, epoch), changed
        )

    def move_primary(self, ticket: int, words: Words) -> None:
        """Make another member the primary."""
        if len(words) != 2:
            raise RefusedError("BADARG", "ADMIN GROUP MOVE-PRIMARY <group> <node>")
        group_id, node = (
            self._discovery.group_named(words[0]),
            node_named(self.state.tables, words[1]),
        )
        self._discovery.led_here(group_id)
        self._replicas.ask_group(
            ticket,
            group_id,
            lambda n: MovePrimary(n, node),
            lambda _: self._requests.answer(ticket, OK),
        )

    def force(self, ticket: int, words: Words) -> None:
        """Force a group that has lost its majority for good to continue with the member here."""
        group_id = self._discovery.open_here(first_of(words))
        is_confirmed = len(words) == 3 and words[1].upper() == b"CONFIRM" and words[0] == words[2]
        if len(words) > 1 and not is_confirmed:
            raise RefusedError("BADARG", "ADMIN GROUP FORCE <group> [CONFIRM <group>]")
        seen = self.state.directory.get(group_id)
        if seen is not None and seen.primary != self.state.id and self._discovery.is_news(seen):
            raise RefusedError(
                "CONFLICT", f"it has a primary: {self._discovery.where_text(group_id)}"
            )

        def told(reply: Reply) -> None:
            if is_confirmed:
                name = self._discovery.name_of(group_id)
                text = f"group {name} was forced to go on from this node alone (ADMIN GROUP FORCE)"
                self.state.effects.append(Warn(text))
            self._requests.answer(ticket, reply.value)

        self._replicas.ask_group(ticket, group_id, lambda n: Force(n, is_confirmed), told)

    def delete_group(self, ticket: int, words: Words) -> None:
        """Delete a group for ever."""
        if len(words) != 3 or words[1].upper() != b"CONFIRM" or words[0] != words[2]:
            raise RefusedError("BADARG", "ADMIN GROUP DELETE <group> CONFIRM <group>")
        need_room_for_a_tombstone(self.state.tables)
        group_id = self._discovery.group_named(words[0])
        if self._has_lost_its_number(group_id):
            founding = self.state.tables.foundings[group_id]
            self._delete(ticket, group_id, Configuration(0, founding.members))
            return
        configuration = self._discovery.led_here(group_id)
        if self.state.tables.number_of(group_id) != FIRST_GROUP:
            self._need_no_namespaces(group_id)

        def confirmed(reply: object) -> None:
            assert isinstance(reply, Reply)
            if reply.code is not Code.OK:
                self._requests.answer(ticket, error(reply.code.value, "it was not deleted"))
            elif group_id in self.state.tables.tombstones:
                self._requests.answer(
                    ticket, error("ERROR_DOES_NOT_EXISTS", "it is deleted already")
                )
            else:
                self._delete(ticket, group_id, configuration)

        question = self._continuations.next_ticket(confirmed)
        self.state.effects.append(AskGroup(question, group_id, Read(question, NOTHING)))

    def _need_no_namespaces(self, group_id: bytes) -> None:
        """Refuse if there are namespaces in a group: their names could never be used again."""
        number = self.state.tables.number_of(group_id)
        found = [root for root, group in self._board.namespaces.items() if group == number]
        if found:
            text = f"/{shown(found[0])} is in it; {len(found)} in all: DELETENAMESPACE first"
            raise RefusedError("NOTEMPTY", text)

    def _has_lost_its_number(self, group_id: bytes) -> bool:
        """Return whether the group never began and another group has its number."""
        others = len(self.state.tables.numbered(self.state.tables.number_of(group_id))) > 1
        return others and not self._discovery.has_begun(group_id)

    def _delete(self, ticket: int, group_id: bytes, configuration: Configuration) -> None:
        self._groups.begin_deleting(group_id, configuration.members)

        def done() -> bytes | None:
            acknowledged = self._groups.acknowledged[group_id]
            said = [one for one in configuration.members if one in acknowledged]
            if len(said) < configuration.quorum:
                return None
            self._groups.end_deleting(group_id)
            return OK

        def late() -> bytes:
            self._groups.end_deleting(group_id)
            return error(
                "UNKNOWN", "it is deleted here; the other nodes learn it once they can be reached"
            )

        self._requests.wait(ticket, done, late)
