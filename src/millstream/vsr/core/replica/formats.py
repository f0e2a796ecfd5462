"""The state format of a group: an entry raises it once all members understand a higher one.

A state format defines what entries mean and how a state is written. With each acknowledgement a
member says which formats its program understands. Programs are upgraded one member at a time.
After the last upgrade the primary raises the format.

Invariants:
1. The format is part of the state. It changes by an entry and never falls. All members execute an
   entry, and freeze a state, in the same format.
2. It is raised only if every member of the epoch has said in this view that it understands it,
   and not while members change.
3. The first format is understood by all. Above it, a node becomes a member, or is taught, only if
   it has said that it understands the group's format (`requested_changes`, `learners`). A member
   that is started with an older program stops at the first entry, or state, of a higher format.

Elsewhere: what a format brings (`group_state`), executing the entry (`execution`).
docs/design/0027-state-formats.md.
"""

from __future__ import annotations

from millstream.vsr.core.entries import Body, Kind
from millstream.vsr.core.replica.member import ReplicaState
from millstream.vsr.core.replica.normal_case import NormalCase
from millstream.vsr.core.replica.requested_changes import RequestedChanges

__all__ = ["Formats"]


class Formats:
    """Raises the state format: the entry RAISE."""

    def __init__(self, state: ReplicaState, normal: NormalCase, changes: RequestedChanges) -> None:
        self.state, self.normal, self.changes = state, normal, changes
        self.begin()

    def begin(self) -> None:
        """Forget which members were heard, and what was asked for.

        Also called for a new primary: other programs may answer by now, and what was logged may be
        lost.
        """
        self._format_of: dict[bytes, int] = {}
        self.changes.asked_format = 0

    def understands(self, member: bytes, format_max: int) -> None:
        """Note the highest state format that a member supports."""
        self._format_of[member] = format_max

    def tick_primary(self) -> None:
        """Raise the format if all understand a higher one."""
        state = self.state
        is_busy = (
            state.suspended
            or self.changes.holding
            or self.changes.is_changing
            or self.normal.swamped
        )
        if not state.leading or is_busy or state.commit_lsn < state.noop_lsn:
            return
        others = [self._format_of.get(member, 0) for member in state.members if member != state.id]
        common = min([state.machine.format_max, *others])
        if common > max(state.state_format, self.changes.asked_format):
            self.changes.asked_format = common
            self.normal.add(Kind.RAISE, Body(argv=(b"%d" % common,)))
