"""Which groups a node hosts: founding them once, opening them, hearing of them, deleting them.

Invariants:
1. A node formats a group once. It is durable that it began before it formats, that it has before
   it says so, and that a quorum has before the group is opened; so whatever comes twice, late or
   after a restart founds nothing a second time.
2. A deleted group is refused for ever: its tombstone is durable before its folder goes, and no
   record, invitation or message of it is listened to afterwards.
3. No node is a founder of two groups of one number: of groups with the same members, founded at
   the same time, one begins.
4. A node that is no member yet opens a group empty, when a member of the pool speaks to it of a
   group it knows: whoever is not invited is not spoken to.

Elsewhere: how records get around (`pool_gossip`), what the group then does (`replica`).

Source: V2R2, "Initial Bootstrap".
"""

from __future__ import annotations

from collections.abc import Callable

from millstream.coordination.core.pool.boots import Boots
from millstream.coordination.core.pool.directory import Seen
from millstream.coordination.core.pool.effects import (
    DropGroup,
    FormatGroup,
    GroupChanged,
    HangUp,
    OpenGroup,
)
from millstream.coordination.core.pool.file_format import Hosted, Phase
from millstream.coordination.core.pool.messages import (
    Deleted,
    Found,
    Founded,
    Founding,
    PoolEnvelope,
)
from millstream.vsr.core.configuration import Configuration
from millstream.vsr.core.hard_state import founded
from millstream.vsr.core.messages import Envelope
from millstream.vsr.core.replica.member import Status

__all__ = ["Hosting"]


class Hosting(Boots):
    """Found, Founded, Deleted; messages of groups that are not open here."""

    def __init__(self, chance: Callable[[], float]) -> None:
        super().__init__(chance)
        self.formed: dict[bytes, dict[bytes, None]] = {}
        """Of groups that are not open here yet: who has formatted them."""
        self.refusals: dict[bytes, str] = {}
        """Of groups that are being founded from here: why a member will not."""
        self.acknowledged: dict[bytes, dict[bytes, None]] = {}
        """Of groups that are being deleted from here: who will refuse them."""

    # ---- after a start

    def open_again(self, here: tuple[bytes, ...]) -> None:
        """Go on with every group where the last process of this node left it."""
        for group_id, hosted in sorted(self.hosted.items()):
            if hosted.phase is Phase.FORMATTING:
                self._format(group_id, is_founder=hosted.is_founder)
            elif hosted.phase is Phase.FORMED:
                self._note_formed(group_id, self.id)
            else:
                self._have_opened(group_id)
        for group_id in here:
            if group_id in self.tables.tombstones:
                self._drop(group_id)

    # ---- founding

    def take_founding(self, founding: Founding) -> None:
        """Take a founding record, and format the group if this node is a member of it."""
        group_id = founding.group_id
        if self.tables.note_founding(founding):
            self.is_changed = True
        if group_id not in self.tables.foundings or group_id in self.hosted:
            return
        if self.refusal_of(founding) or self.has_moved_on(group_id):
            return
        if self.id in founding.members:
            self._format(group_id, is_founder=True)

    def has_moved_on(self, group_id: bytes) -> bool:
        """Return whether it is known to have begun and changed its members."""
        seen = self.directory.get(group_id)
        return seen is not None and seen.epoch > 0

    def _format(self, group_id: bytes, *, is_founder: bool) -> None:
        founding = self.tables.foundings[group_id]
        standing = founded(group_id, self.id, founding.members, founding.has_journal)
        if not is_founder:
            nobody = standing.configuration._replace(members=())
            standing = standing._replace(configuration=nobody)
        hosted = Hosted(group_id, Phase.FORMATTING, is_founder)
        self.is_changed |= self.hosted.get(group_id) != hosted
        self.hosted[group_id] = hosted
        number = self.next_number(lambda: self._formatted(group_id))
        self.effects.append(FormatGroup(number, standing))

    def _formatted(self, group_id: bytes) -> None:
        hosted = self.hosted.get(group_id)
        if hosted is None:
            return
        self.hosted[group_id] = hosted._replace(phase=Phase.FORMED)
        self.is_changed = True
        if not hosted.is_founder:
            self._open(group_id)
            return
        for member in self.tables.foundings[group_id].members:
            self.say(member, Founded(group_id, ""))
        self._note_formed(group_id, self.id)

    def note_own(self, group_id: bytes) -> None:
        """Count this node, if it has formatted a group."""
        hosted = self.hosted.get(group_id)
        if hosted is not None and hosted.phase is not Phase.FORMATTING:
            self._note_formed(group_id, self.id)

    def _note_formed(self, group_id: bytes, member: bytes) -> None:
        formed = self.formed.setdefault(group_id, {})
        formed[member] = None
        founding, hosted = self.tables.foundings.get(group_id), self.hosted.get(group_id)
        if founding is None or hosted is None or hosted.phase is not Phase.FORMED:
            return
        if len(formed) >= Configuration(0, founding.members).quorum:
            self._open(group_id)

    def _open(self, group_id: bytes) -> None:
        self.hosted[group_id] = self.hosted[group_id]._replace(phase=Phase.OPEN)
        self.is_changed = True
        self._have_opened(group_id)

    def _have_opened(self, group_id: bytes) -> None:
        if self.own_refusal:
            return
        self.effects.append(OpenGroup(group_id, self.tables.number_of(group_id)))

    def tick_foundings(self) -> None:
        """Ask the members of groups that are not formed yet again."""
        for group_id, hosted in sorted(self.hosted.items()):
            if hosted.phase is Phase.FORMED:
                self.ask_members(group_id)

    def ask_members(self, group_id: bytes) -> None:
        """Have the other members format a group, unless they have said that they did."""
        founding = self.tables.foundings[group_id]
        for member in founding.members:
            if member not in self.formed.get(group_id, ()):
                self.say(member, Found(founding))

    def on_found(self, envelope: PoolEnvelope, found: Found) -> None:
        """Format a group, or say that it is."""
        founding = found.founding
        group_id = founding.group_id
        if refusal := self.refusal_of(founding):
            self.say(envelope.sender, Founded(group_id, refusal))
            return
        self.take_founding(founding)
        hosted = self.hosted.get(group_id)
        if hosted is not None and hosted.phase is not Phase.FORMATTING:
            self.say(envelope.sender, Founded(group_id, ""))

    def refusal_of(self, founding: Founding) -> str:
        """Return why this group cannot be founded; empty if it can, or is."""
        others = [one for one in self.tables.numbered(founding.number) if one != founding.group_id]
        if founding.group_id in self.tables.tombstones:
            return "it was deleted"
        if others and founding.group_id not in self.hosted:
            return f"there is another group {founding.number}"
        return ""

    def on_founded(self, envelope: PoolEnvelope, said: Founded) -> None:
        """Count who has formatted a group."""
        if said.group_id not in self.tables.foundings:
            return
        if said.refusal:
            if said.group_id in self.refusals:
                self.refusals[said.group_id] = said.refusal
        elif envelope.sender in self.tables.foundings[said.group_id].members:
            self._note_formed(said.group_id, envelope.sender)

    # ---- open groups

    def called(self, number: int) -> list[bytes]:
        """Return the groups of this number that have begun; if none has, those that are to."""
        found = self.tables.numbered(number)
        return found if len(found) < 2 else [one for one in found if self.has_begun(one)] or found

    def has_begun(self, group_id: bytes) -> bool:
        """Return whether it runs here, or was heard to have a primary."""
        hosted = self.hosted.get(group_id)
        is_open = hosted is not None and hosted.phase is Phase.OPEN
        return is_open or self.directory.get(group_id) is not None

    def on_group_changed(self, state: GroupChanged) -> None:
        """Note what became of a group here, and where it is."""
        if state.group_id in self.hosted:
            self.states[state.group_id] = state
            self.note_state(state)

    def note_state(self, state: GroupChanged) -> bool:
        """Take a replica of this node for a witness; return whether its group has moved on."""
        if not state.configuration.members or state.status is not Status.NORMAL:
            return False
        if state.group_id not in self.tables.foundings:
            return False
        known = self.directory.get(state.group_id)
        # A backup knows who leads, but not whether it still does: its word makes nothing younger.
        is_new = known is None or (state.configuration.epoch, state.view) > known[:2]
        if not state.leads and not is_new:
            return False
        members = state.configuration.members
        elements = self.elements.get(state.group_id, 0)
        seen = Seen(state.configuration.epoch, state.view, members, self.now_ms, elements)
        return self.directory.note(state.group_id, seen)

    def is_member(self, group_id: bytes) -> bool:
        """Return whether this node has a part in a group, or may have."""
        state = self.states.get(group_id)
        if state is None:
            return group_id in self.hosted
        if state.status is Status.INITIALIZATION:  # invited; perhaps nothing came of it
            seen = self.directory.get(group_id)
            return seen is not None and self.id in seen.members
        return state.status is not Status.RETIRED

    def on_stray(self, envelope: Envelope) -> None:
        """Open a group that this node is to be a member of."""
        group_id = envelope.group_id
        if group_id in self.hosted or group_id not in self.tables.foundings:
            return
        if self.tables.node(envelope.sender) is not None and envelope.sender != self.id:
            founding = self.tables.foundings[group_id]
            is_founder = self.id in founding.members and envelope.epoch == 0
            self._format(group_id, is_founder=is_founder)

    # ---- deleting

    def delete(self, group_id: bytes) -> None:
        """Refuse a group, or a node, for ever, and remove what is here of it."""
        is_node = self.tables.node(group_id) is not None
        if not self.tables.bury(group_id):
            return
        self.is_changed = True
        if is_node:
            self.part_with(group_id)
        self.directory.forget(group_id)
        self.states.pop(group_id, None)
        self.formed.pop(group_id, None)
        if self.hosted.pop(group_id, None) is not None:
            self._drop(group_id)

    def part_with(self, node_id: bytes) -> None:
        """Have nothing to do with a node any more."""
        self.heard_ms.pop(node_id, None)
        self.effects.append(HangUp(node_id))

    def _drop(self, group_id: bytes) -> None:
        self.effects.append(DropGroup(self.next_number(lambda: None), group_id))

    def on_deleted(self, envelope: PoolEnvelope, said: Deleted) -> None:
        """Delete a group, and say so; or count who has."""
        if said.is_answer:
            if said.group_id in self.acknowledged:
                self.acknowledged[said.group_id][envelope.sender] = None
            return
        self.delete(said.group_id)
        if said.group_id in self.tables.tombstones:
            self.say(envelope.sender, Deleted(said.group_id, is_answer=True))
