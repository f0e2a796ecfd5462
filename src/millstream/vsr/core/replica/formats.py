"""Which state format a group uses: raised by an entry, once every member understands a higher one.

A state format says what entries mean, and which bytes a state has. With each acknowledgement a
member says up to which format its program understands. Programs are replaced one member at a time;
once the last one is, the primary raises the format.

Invariants:
1. The format is state: it changes by an entry and never falls, and each entry is executed, each
   state frozen, in the same format by all members.
2. It is raised only if every member of the epoch has said in this view that it understands it, and
   not while members are exchanged.
3. Nobody becomes a member, or is taught, who has not said that it understands the group's format,
   if that is not the first one, which everybody understands (`requested_changes`, `learners`).
   A member that is started with an older program ends at the first entry, or the state, of a
   higher format: it answers nothing that follows from it.

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
    """RAISE."""

    def __init__(self, state: ReplicaState, normal: NormalCase, changes: RequestedChanges) -> None:
        self.state, self.normal, self.changes = state, normal, changes
        self.begin()

    def begin(self) -> None:
        """Have heard from nobody, and asked for nothing.

        Also as a new primary: other programs may answer by now, and what was logged may be lost.
        """
        self._format_of: dict[bytes, int] = {}
        self.changes.asked_format = 0

    def understands(self, member: bytes, format_max: int) -> None:
        """Note what a member understands."""
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
