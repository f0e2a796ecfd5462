"""The groups that a node hosts: founds once, opens, and deletes.

Invariants:
1. A node formats a group once. It is durable that it began before it formats; that it has
   formatted before it says so; and that a quorum has formatted before the group is opened. So
   repeated and late messages, and restarts, found nothing a second time.
2. A deleted group is refused forever: its tombstone is durable before its folder is removed, and
   every later record, invitation or message of it is ignored.
3. No node is a founder of two groups of one number. Of groups with the same members that are
   founded at the same time, one begins.
4. A node that is not a member yet opens a group empty when a member of the pool sends it a message
   for a group that it knows. Nodes that are not invited get no such messages.

The phases of a group here are in `MOVES`.

Elsewhere: spreading records (`gossip`), what the group then does (`vsr.core.replica`).

Source: V2R2, "Initial Bootstrap".
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from millstream.coordination.core.pool.continuations import Continuations
from millstream.coordination.core.pool.directory import GroupStatus
from millstream.coordination.core.pool.effects import (
    DropGroup,
    FormatGroup,
    GroupChanged,
    HangUp,
    OpenGroup,
)
from millstream.coordination.core.pool.file_format import Hosted, Phase
from millstream.coordination.core.pool.incarnations import Incarnations
from millstream.coordination.core.pool.membership import Membership
from millstream.coordination.core.pool.messages import (
    Deleted,
    Found,
    Founded,
    Founding,
    PoolEnvelope,
)
from millstream.coordination.core.pool.state import PoolState
from millstream.vsr.core.configuration import Configuration
from millstream.vsr.core.hard_state import founded
from millstream.vsr.core.messages import Envelope
from millstream.vsr.core.replica.member import Status

__all__ = ["MOVES", "HostedGroups"]

MOVES: Final[dict[Phase | None, frozenset[Phase]]] = {
    None: frozenset((Phase.FORMATTING, Phase.FORMED)),  # FORMED: it was restored from a file
    Phase.FORMATTING: frozenset((Phase.FORMATTING, Phase.FORMED)),  # again, after a restart
    Phase.FORMED: frozenset((Phase.OPEN,)),
    Phase.OPEN: frozenset(),
}
"""The next phases, by the phase of a group here (None: not here). Each may change to deleted."""


class HostedGroups:
    """Found, Founded, Deleted; messages of groups that are not open here."""

    def __init__(
        self,
        state: PoolState,
        continuations: Continuations,
        incarnations: Incarnations,
        membership: Membership,
    ) -> None:
        self.state = state
        self._continuations = continuations
        self._incarnations = incarnations
        self._membership = membership
        self.formed: dict[bytes, dict[bytes, None]] = {}
        """The nodes that have formatted a group which is not open here yet, by group."""
        self.refusals: dict[bytes, str] = {}
        """Groups that are being founded from here, and why a member will not; empty: it may."""
        self.acknowledged: dict[bytes, dict[bytes, None]] = {}
        """The nodes that will refuse a group which is being deleted here, by group."""

    def tick(self) -> None:
        """Repeat what others may have missed."""
        for group_id, hosted in sorted(self.state.hosted.items()):
            if hosted.phase is Phase.FORMED:
                self.ask_members(group_id)
        for group_id in self.refusals:
            if group_id in self.state.tables.foundings:
                self.ask_members(group_id)
        for group_id in self.acknowledged:
            self._ask_to_delete(group_id)

    def _enter(self, group_id: bytes, phase: Phase, *, is_founder: bool) -> None:
        """Set the phase of a group here."""
        before, hosted = self.state.hosted.get(group_id), Hosted(group_id, phase, is_founder)
        assert phase in MOVES[None if before is None else before.phase], (
            f"a group goes from {before} to {phase.name}"
        )
        assert group_id in self.state.tables.foundings, "a group without a founding record"
        self.state.is_changed |= before != hosted
        self.state.hosted[group_id] = hosted

    # ---- after a start

    def open_again(self, here: tuple[bytes, ...]) -> None:
        """Go on with every group where the last process of this node left it."""
        for group_id, hosted in sorted(self.state.hosted.items()):
            if hosted.phase is Phase.FORMATTING:
                self._format(group_id, is_founder=hosted.is_founder)
            elif hosted.phase is Phase.FORMED:
                self._note_formed(group_id, self.state.id)
            else:
                self._have_opened(group_id)
        for group_id in here:
            if group_id in self.state.tables.tombstones:
                self.drop_folder(group_id)

    # ---- founding

    def take_founding(self, founding: Founding) -> None:
        """Take a founding record, and format the group if this node is a member of it."""
        group_id = founding.group_id
        if self.state.tables.note_founding(founding):
            self.state.is_changed = True
        if group_id not in self.state.tables.foundings or group_id in self.state.hosted:
            return
        if self.refusal_of(founding) or self.has_moved_on(group_id):
            return
        if self.state.id in founding.members:
            self._format(group_id, is_founder=True)

    def has_moved_on(self, group_id: bytes) -> bool:
        """Return whether it is known to have begun and changed its members."""
        seen = self.state.directory.get(group_id)
        return seen is not None and seen.epoch > 0

    def _format(self, group_id: bytes, *, is_founder: bool) -> None:
        founding = self.state.tables.foundings[group_id]
        hard_state = founded(group_id, self.state.id, founding.members, founding.has_journal)
        if not is_founder:
            nobody = hard_state.configuration._replace(members=())
            hard_state = hard_state._replace(configuration=nobody)
        self._enter(group_id, Phase.FORMATTING, is_founder=is_founder)
        number = self._continuations.next_number(lambda: self._formatted(group_id))
        self.state.effects.append(FormatGroup(number, hard_state))

    def _formatted(self, group_id: bytes) -> None:
        hosted = self.state.hosted.get(group_id)
        if hosted is None:
            return
        self._enter(group_id, Phase.FORMED, is_founder=hosted.is_founder)
        if not hosted.is_founder:
            self._open(group_id)
            return
        for member in self.state.tables.foundings[group_id].members:
            self.state.say(member, Founded(group_id, ""))
        self._note_formed(group_id, self.state.id)

    def begin_founding(self, founding: Founding) -> None:
        """Found a group from here: take its record, and have the members format it."""
        group_id = founding.group_id
        self.refusals[group_id] = ""
        self.take_founding(founding)
        self._note_own(group_id)
        self.ask_members(group_id)

    def end_founding(self, group_id: bytes) -> None:
        """Ask no more than for any group; harmless if that is over."""
        self.refusals.pop(group_id, None)

    def restored(self, founding: Founding) -> None:
        """Open a group that was formatted with the state in a file; its record is taken."""
        self._enter(founding.group_id, Phase.FORMED, is_founder=True)
        self._note_formed(founding.group_id, self.state.id)

    def _note_own(self, group_id: bytes) -> None:
        """Count this node, if it has formatted a group."""
        hosted = self.state.hosted.get(group_id)
        if hosted is not None and hosted.phase is not Phase.FORMATTING:
            self._note_formed(group_id, self.state.id)

    def _note_formed(self, group_id: bytes, member: bytes) -> None:
        formed = self.formed.setdefault(group_id, {})
        formed[member] = None
        founding, hosted = (
            self.state.tables.foundings.get(group_id),
            self.state.hosted.get(group_id),
        )
        if founding is None or hosted is None or hosted.phase is not Phase.FORMED:
            return
        if len(formed) >= Configuration(0, founding.members).quorum:
            self._open(group_id)

    def _open(self, group_id: bytes) -> None:
        self._enter(group_id, Phase.OPEN, is_founder=self.state.hosted[group_id].is_founder)
        self._have_opened(group_id)

    def _have_opened(self, group_id: bytes) -> None:
        if self._incarnations.own_refusal:
            return
        self.state.effects.append(OpenGroup(group_id, self.state.tables.number_of(group_id)))

    def ask_members(self, group_id: bytes) -> None:
        """Ask the other members to format a group, unless they have reported that they did."""
        founding = self.state.tables.foundings[group_id]
        for member in founding.members:
            if member not in self.formed.get(group_id, ()):
                self.state.say(member, Found(founding))

    def on_found(self, envelope: PoolEnvelope, found: Found) -> None:
        """Format a group, or say that it is."""
        founding = found.founding
        group_id = founding.group_id
        if refusal := self.refusal_of(founding):
            self.state.say(envelope.sender, Founded(group_id, refusal))
            return
        self.take_founding(founding)
        hosted = self.state.hosted.get(group_id)
        if hosted is not None and hosted.phase is not Phase.FORMATTING:
            self.state.say(envelope.sender, Founded(group_id, ""))

    def refusal_of(self, founding: Founding) -> str:
        """Return why this group cannot be founded; empty if it can, or is."""
        others = [
            one for one in self.state.tables.numbered(founding.number) if one != founding.group_id
        ]
        if founding.group_id in self.state.tables.tombstones:
            return "it was deleted"
        if others and founding.group_id not in self.state.hosted:
            return f"there is another group {founding.number}"
        return ""

    def on_founded(self, envelope: PoolEnvelope, said: Founded) -> None:
        """Count who has formatted a group."""
        if said.group_id not in self.state.tables.foundings:
            return
        if said.refusal:
            if said.group_id in self.refusals:
                self.refusals[said.group_id] = said.refusal
        elif envelope.sender in self.state.tables.foundings[said.group_id].members:
            self._note_formed(said.group_id, envelope.sender)

    # ---- open groups

    def on_group_changed(self, replica: GroupChanged) -> None:
        """Note what became of a group here, and where it is."""
        if replica.group_id in self.state.hosted:
            self.state.replicas[replica.group_id] = replica
            self.note_replica(replica)

    def note_led(self) -> None:
        """Take the replicas that lead here for witnesses of now."""
        for group_id in sorted(self.state.replicas):
            if self.state.replicas[group_id].leads:
                self.note_replica(self.state.replicas[group_id])

    def note_replica(self, replica: GroupChanged) -> bool:
        """Take a replica of this node for a witness; return whether its group has moved on."""
        if not replica.configuration.members or replica.status is not Status.NORMAL:
            return False
        if replica.group_id not in self.state.tables.foundings:
            return False
        known = self.state.directory.get(replica.group_id)
        # A backup knows who leads, but not whether it still does: its word makes nothing younger.
        is_new = known is None or (replica.configuration.epoch, replica.view) > known[:2]
        if not replica.leads and not is_new:
            return False
        members = replica.configuration.members
        elements = self.state.elements.get(replica.group_id, 0)
        seen = GroupStatus(
            replica.configuration.epoch, replica.view, members, self.state.now_ms, elements
        )
        return self.state.directory.note(replica.group_id, seen)

    def is_member(self, group_id: bytes) -> bool:
        """Return whether this node has a part in a group, or may have."""
        replica = self.state.replicas.get(group_id)
        if replica is None:
            return group_id in self.state.hosted
        if replica.status is Status.INITIALIZATION:  # invited; perhaps nothing came of it
            seen = self.state.directory.get(group_id)
            return seen is not None and self.state.id in seen.members
        return replica.status is not Status.RETIRED

    def on_stray(self, envelope: Envelope) -> None:
        """Open a group that this node is to be a member of."""
        group_id = envelope.group_id
        if group_id in self.state.hosted or group_id not in self.state.tables.foundings:
            return
        if (
            self.state.tables.node(envelope.sender) is not None
            and envelope.sender != self.state.id
        ):
            founding = self.state.tables.foundings[group_id]
            is_founder = self.state.id in founding.members and envelope.epoch == 0
            self._format(group_id, is_founder=is_founder)

    # ---- deleting

    def delete(self, group_id: bytes) -> None:
        """Refuse a group, or a node, for ever, and remove what is here of it."""
        is_node = self.state.tables.node(group_id) is not None
        if not self.state.tables.add_tombstone(group_id):
            return
        self.state.is_changed = True
        if is_node:
            self._forget_node(group_id)
        self.state.directory.forget(group_id)
        self.state.replicas.pop(group_id, None)
        self.formed.pop(group_id, None)
        if self.state.hosted.pop(group_id, None) is not None:
            self.drop_folder(group_id)

    def _forget_node(self, node_id: bytes) -> None:
        if node_id == self.state.id:
            self._membership.be_removed()
            return
        self.state.heard_ms.pop(node_id, None)
        self.state.effects.append(HangUp(node_id))

    def drop_folder(self, group_id: bytes) -> None:
        """Stop the replica, if there is one, and remove the folder."""
        self.state.effects.append(DropGroup(self._continuations.next_number(), group_id))

    def begin_deleting(self, group_id: bytes, members: Iterable[bytes]) -> None:
        """Delete a group from here: have all nodes, above all these, refuse it for ever."""
        self.acknowledged[group_id] = dict.fromkeys(
            (self.state.id,) if self.state.id in members else ()
        )
        self.delete(group_id)
        self._ask_to_delete(group_id)

    def end_deleting(self, group_id: bytes) -> None:
        """Stop asking. Does nothing if that is over."""
        self.acknowledged.pop(group_id, None)

    def _ask_to_delete(self, group_id: bytes) -> None:
        for info in self.state.tables.others():
            if info.node_id not in self.acknowledged[group_id]:
                self.state.say(info.node_id, Deleted(group_id, is_answer=False))

    def on_deleted(self, envelope: PoolEnvelope, said: Deleted) -> None:
        """Delete a group, and say so; or count who has."""
        if said.is_answer:
            if said.group_id in self.acknowledged:
                self.acknowledged[said.group_id][envelope.sender] = None
            return
        self.delete(said.group_id)
        if said.group_id in self.state.tables.tombstones:
            self.state.say(envelope.sender, Deleted(said.group_id, is_answer=True))

    def check_invariants(self) -> None:
        """Assert what is true after every event."""
        for group_id, hosted in self.state.hosted.items():
            if hosted.phase is Phase.FORMED:
                members = self.state.tables.foundings[group_id].members
                formed = self.formed.get(group_id, {})
                assert len(formed) < Configuration(0, members).quorum, (
                    "a quorum has formatted a group, and it is not open"
                )
