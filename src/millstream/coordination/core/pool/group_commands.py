"""Commands about groups: founding, changing and deleting them.

Invariants:
1. A group is founded by one record; saying it again goes on with it.
2. A group is deleted only after a quorum of its members has confirmed this primary, unless it
   never began and another has its number; OK says that a quorum will refuse it for ever.

Elsewhere: the changes themselves (`replica`), what a founding makes of a node (`pool_hosting`).

Source: V2R2, "Initial Bootstrap" and "Reconfiguration".
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import count
from typing import Final

from millstream.coordination.core.pool.admin_requests import (
    PREFIX_MIN,
    Asking,
    RefusedError,
    Words,
    file_in,
    first_of,
    no_more,
    number_in,
    shown,
)
from millstream.coordination.core.pool.effects import (
    FIRST_GROUP,
    AskGroup,
    AskRestore,
    DropGroup,
    Refusal,
    Warn,
)
from millstream.coordination.core.pool.file_format import Hosted, Phase
from millstream.coordination.core.pool.messages import (
    GROUPS_MAX,
    Deleted,
    Founding,
)
from millstream.coordination.core.pool.replies import (
    value_of,
)
from millstream.vsr.core.configuration import SIZES, Configuration
from millstream.vsr.core.effects import (
    Code,
    CopyState,
    Force,
    MovePrimary,
    Read,
    Reconfigure,
    Reply,
    TakeSnapshot,
)
from millstream.vsr.core.entries import NOTHING
from millstream.vsr.core.hard_state import founded
from millstream.vsr.core.values import OK, bulk, error

__all__ = ["GroupCommands"]

_SALT_MAX: Final = 1 << 53


class GroupCommands(Asking):
    """Those of GROUP; RESTORE, SNAPSHOT."""

    def __init__(self, chance: Callable[[], float]) -> None:
        super().__init__(chance)
        self._founding: dict[bytes, None] = {}

    def tick_admin(self) -> None:
        """Say again what others may not have heard."""
        for group_id in self._founding:
            if group_id in self.tables.foundings:
                self.ask_members(group_id)
        for group_id in self.acknowledged:
            self._ask_to_delete(group_id)

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
        members = self.members_named(words)
        if len(members) not in (1, *SIZES):
            raise RefusedError("BADCONFIG", "a group has 1, 3, 5 or 7 members")
        if len(members) == 1 and not has_journal:
            raise RefusedError(
                "BADCONFIG",
                "alone without a journal it would be lost at the first restart: JOURNAL fsync, or "
                "name three nodes",
            )
        founding = self._founding_of(number, members, has_journal=has_journal)
        group_id = founding.group_id
        self._founding[group_id], self.refusals[group_id] = None, ""
        self.take_founding(founding)
        self.note_own(group_id)
        self.ask_members(group_id)

        def over(value: bytes) -> bytes:
            self._founding.pop(group_id, None)
            self.refusals.pop(group_id, None)
            return value

        def done() -> bytes | None:
            if refusal := self.refusals.get(group_id):
                return over(error("EXISTS", f"a member has not founded it: {refusal}"))
            formed = self.formed.get(group_id, {})
            is_done = all(member in formed for member in members)
            return over(OK) if is_done or self.has_moved_on(group_id) else None

        def late() -> bytes:
            formed = self.formed.get(group_id, {})
            missing = " ".join(member.hex() for member in members if member not in formed)
            return over(error("NOTREADY", f"{missing}: say it again to go on"))

        self.wait(ticket, done, late)
        return None

    def _new_number(self, words: Words) -> int:
        if not words:
            raise RefusedError("BADARG", "which number shall the group have?")
        return number_in(words[0], 1, (1 << 63) - 1)

    def _founding_of(
        self, number: int, members: tuple[bytes, ...], *, has_journal: bool
    ) -> Founding:
        """Return the record of a new group, or the one there is if it is the same."""
        for group_id in self.called(number):
            founding = self.tables.foundings[group_id]
            if founding.members != members or founding.has_journal != has_journal:
                raise RefusedError("EXISTS", f"there is another group {number}")
            return founding
        if len(self.tables.foundings) >= GROUPS_MAX:
            raise RefusedError("QUOTA", f"a pool has at most {GROUPS_MAX} groups")
        # Who is asked again, or is asked by two, founds the same group.
        salts = (Founding(number, members, has_journal, salt) for salt in count())
        return next(one for one in salts if one.group_id not in self.tables.tombstones)

    def restore(self, ticket: int, words: Words) -> None:
        """Found a group of this node with the state in a file."""
        if len(words) != 2:
            raise RefusedError("BADARG", "ADMIN RESTORE <number> <file>")
        number, file = self._new_number(words), file_in(words[1])
        if self.tables.numbered(number):
            raise RefusedError("EXISTS", f"there is a group {number}")
        founding = self._founding_of(number, (self.id,), has_journal=True)
        founding = founding._replace(salt=int(self.chance() * _SALT_MAX))
        group_id = founding.group_id

        def restored(answer: object) -> None:
            if isinstance(answer, Refusal):
                self.answer(ticket, error(*answer))
                return
            if self.tables.numbered(number) or not self.tables.note_founding(founding):
                self.effects.append(DropGroup(self.next_number(lambda: None), group_id))
                text = "there are too many groups now, or another one with its number"
                self.answer(ticket, error("CONFLICT", f"{text}; nothing is restored"))
                return
            self.hosted[group_id] = Hosted(group_id, Phase.FORMED, is_founder=True)
            self.is_changed = True
            self._note_formed(group_id, self.id)
            self.answer(ticket, value_of(answer))

        standing = founded(group_id, self.id, founding.members)
        question = self.next_ticket(restored)
        self.effects.append(AskRestore(question, founding, standing, file))

    # ---- what replicas do

    def ask_group(
        self,
        ticket: int,
        group_id: bytes,
        event: Callable[[int], Reconfigure | MovePrimary | TakeSnapshot | CopyState | Force],
        then: Callable[[Reply], None],
        instead: Callable[[], None] | None = None,
    ) -> None:
        """Have the replica do something; go on if it did, else tell why not.

        `instead` is done, if there is one, where only a primary with a quorum could do it.
        """

        def take(reply: Reply) -> None:
            if reply.code is Code.OK:
                then(reply)
            elif instead is not None and reply.code in (Code.NOQUORUM, Code.NOTPRIMARY):
                instead()
            elif reply.code is Code.NOTPRIMARY and group_id in self.tables.foundings:
                self.answer(ticket, error("NOTPRIMARY", self.where_text(group_id)))
            else:
                text = reply.value.decode(errors="replace")
                self.answer(ticket, error(reply.code.value, text))

        question = self.next_ticket(take)
        self.effects.append(AskGroup(question, group_id, event(question)))

    def reconfig(self, ticket: int, words: Words) -> None:
        """Change the members to these."""
        group_id, words = self.group_named(first_of(words)), words[1:]
        now = self.led_here(group_id)
        expected = now.epoch
        if len(words) > 2 and words[-2].upper() == b"EPOCH":
            expected, words = number_in(words[-1], 0, 0xFFFFFFFF), words[:-2]
        members = self.members_named(words)
        if expected != now.epoch:  # also of a repeat: whoever asked does not know of this epoch
            raise RefusedError("CONFLICT", f"it is in epoch {now.epoch}")
        self._change(ticket, group_id, members)

    def replace(self, ticket: int, words: Words) -> None:
        """Put one node in the place of another."""
        if len(words) != 3:
            raise RefusedError("BADARG", "ADMIN GROUP REPLACE <group> <old node> <new node>")
        group_id = self.group_named(words[0])
        members, old = self.led_here(group_id).members, self._old(group_id, words[1])
        new = self.node_named(words[2])
        if old not in members and new not in members:
            raise RefusedError("BADCONFIG", f"{shown(words[1])} is no member of this group")
        if old != new and old in members and new in members:
            raise RefusedError("BADCONFIG", f"{shown(words[2])} is a member already")
        self._change(ticket, group_id, {*members, new} - ({old} - {new}))

    def add(self, ticket: int, words: Words) -> None:
        """Add members."""
        group_id = self.group_named(first_of(words))
        members = self.led_here(group_id).members
        self._change(ticket, group_id, {*members, *self.members_named(words[1:])})

    def remove(self, ticket: int, words: Words) -> None:
        """Remove members; those of the epoch before are: it is said again, perhaps."""
        group_id = self.group_named(first_of(words))
        now = self.led_here(group_id)
        if not words[1:]:
            raise RefusedError("BADARG", "ADMIN GROUP REMOVE <group> <node> [<node> ...]")
        old = {self._old(group_id, word) for word in words[1:]}
        if strangers := old.difference(now.everybody):
            raise RefusedError("BADCONFIG", f"{min(strangers).hex()} is no member of this group")
        self._change(ticket, group_id, {*now.members} - old)

    def _old(self, group_id: bytes, text: bytes) -> bytes:
        """Return who is to be no member any more: a member, or whoever was one or could be."""
        wanted = shown(text.lower())
        members = self.led_here(group_id).members
        for among in (members, self.tables.nodes, self.tables.tombstones):
            found = [one for one in among if one.hex().startswith(wanted)]
            if len(text) >= PREFIX_MIN and len(found) == 1:
                return found[0]
        raise RefusedError("BADCONFIG", f"{wanted} is no member of this group")

    def _change(self, ticket: int, group_id: bytes, wanted: Collection[bytes]) -> None:
        """Have the primary, which is here, change the members, unless they are these already."""
        epoch = self.led_here(group_id).epoch
        members = tuple(sorted(wanted))
        most, before = ((n - 1) // 2 for n in (len(members), len(self.led_here(group_id).members)))

        def changed(reply: Reply) -> None:
            now = int(reply.value) if reply.value.isdigit() else epoch + 1
            said = [f"{most} losses are survived now, not {before}"] if most < before else []
            self.answer(ticket, value_of([now, list(members), *said]))

        self.ask_group(ticket, group_id, lambda n: Reconfigure(n, members, epoch), changed)

    def move_primary(self, ticket: int, words: Words) -> None:
        """Have another member lead."""
        if len(words) != 2:
            raise RefusedError("BADARG", "ADMIN GROUP MOVE-PRIMARY <group> <node>")
        group_id, node = self.group_named(words[0]), self.node_named(words[1])
        self.led_here(group_id)
        self.ask_group(
            ticket, group_id, lambda n: MovePrimary(n, node), lambda _: self.answer(ticket, OK)
        )

    def snapshot(self, ticket: int, words: Words) -> None:
        """Take a snapshot now."""
        group_id = self.group_named(first_of(words))
        no_more(words[1:])
        self.led_here(group_id)
        self.ask_group(
            ticket, group_id, TakeSnapshot, lambda it: self.answer(ticket, bulk(it.value))
        )

    def force(self, ticket: int, words: Words) -> None:
        """Have a group that has lost its majority for good go on from the member here."""
        group_id = self.open_here(first_of(words))
        is_confirmed = len(words) == 3 and words[1].upper() == b"CONFIRM" and words[0] == words[2]
        if len(words) > 1 and not is_confirmed:
            raise RefusedError("BADARG", "ADMIN GROUP FORCE <group> [CONFIRM <group>]")
        seen = self.directory.get(group_id)
        if seen is not None and seen.primary != self.id and self.is_news(seen):
            raise RefusedError("CONFLICT", f"it has a primary: {self.where_text(group_id)}")

        def told(reply: Reply) -> None:
            if is_confirmed:
                name = self.name_of(group_id)
                text = f"group {name} was forced to go on from this node alone (ADMIN GROUP FORCE)"
                self.effects.append(Warn(text))
            self.answer(ticket, reply.value)

        self.ask_group(ticket, group_id, lambda n: Force(n, is_confirmed), told)

    def delete_group(self, ticket: int, words: Words) -> None:
        """Delete a group for ever."""
        if len(words) != 3 or words[1].upper() != b"CONFIRM" or words[0] != words[2]:
            raise RefusedError("BADARG", "ADMIN GROUP DELETE <group> CONFIRM <group>")
        self.need_room_for_a_tombstone()
        group_id = self.group_named(words[0])
        if self._has_lost_its_number(group_id):
            founding = self.tables.foundings[group_id]
            self._bury(ticket, group_id, Configuration(0, founding.members))
            return
        configuration = self.led_here(group_id)
        if self.tables.number_of(group_id) != FIRST_GROUP:
            self._need_no_namespaces(group_id)

        def confirmed(reply: object) -> None:
            assert isinstance(reply, Reply)
            if reply.code is not Code.OK:
                self.answer(ticket, error(reply.code.value, "it was not deleted"))
            elif group_id in self.tables.tombstones:
                self.answer(ticket, error("ERROR_DOES_NOT_EXISTS", "it is deleted already"))
            else:
                self._bury(ticket, group_id, configuration)

        question = self.next_ticket(confirmed)
        self.effects.append(AskGroup(question, group_id, Read(question, NOTHING)))

    def _need_no_namespaces(self, group_id: bytes) -> None:
        """Refuse if there are namespaces in a group: their names would be nobody's for ever."""
        number = self.tables.number_of(group_id)
        found = [root for root, group in self.namespaces.items() if group == number]
        if found:
            text = f"/{shown(found[0])} is in it; {len(found)} in all: DELETENAMESPACE first"
            raise RefusedError("NOTEMPTY", text)

    def _has_lost_its_number(self, group_id: bytes) -> bool:
        """Return whether it never began, and another group is called the same: nobody leads it."""
        others = len(self.tables.numbered(self.tables.number_of(group_id))) > 1
        return others and not self.has_begun(group_id)

    def _bury(self, ticket: int, group_id: bytes, configuration: Configuration) -> None:
        self.acknowledged[group_id] = dict.fromkeys(
            (self.id,) if self.id in configuration.members else ()
        )
        self.delete(group_id)
        self._ask_to_delete(group_id)

        def done() -> bytes | None:
            said = [one for one in configuration.members if one in self.acknowledged[group_id]]
            if len(said) < configuration.quorum:
                return None
            del self.acknowledged[group_id]
            return OK

        def late() -> bytes:
            self.acknowledged.pop(group_id, None)
            return error("UNKNOWN", "it is deleted here; the others learn it when they are heard")

        self.wait(ticket, done, late)

    def _ask_to_delete(self, group_id: bytes) -> None:
        for info in self.tables.others():
            if info.node_id not in self.acknowledged[group_id]:
                self.say(info.node_id, Deleted(group_id, is_answer=False))
