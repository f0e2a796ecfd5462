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
   if that is not the first one, which everybody understands (`changing`, `learning`).
   A member that is started with an older program ends at the first entry, or the state, of a
   higher format: it answers nothing that follows from it.

Elsewhere: what a format brings (`group_state`), executing the entry (`member`).
docs/design/0027-state-formats.md.
"""

from __future__ import annotations

from millstream.vsr.core.entries import Body, Kind
from millstream.vsr.core.messages import Envelope, PrepareOk
from millstream.vsr.core.replica.requested_changes import Changing

__all__ = ["Formats"]


class Formats(Changing):
    """RAISE."""

    def begin_formats(self) -> None:
        """Have heard from nobody, and asked for nothing."""
        self._format_of: dict[bytes, int] = {}
        self.asked_format = 0

    def lead(self, commit_lsn: int) -> None:
        """Also ask anew: other programs may answer by now, and what was logged may be lost."""
        self.begin_formats()
        super().lead(commit_lsn)

    def on_prepare_ok(self, envelope: Envelope, ok: PrepareOk) -> None:
        """Also note what the member understands."""
        super().on_prepare_ok(envelope, ok)
        self._format_of[envelope.sender] = ok.format_max

    def tick_primary(self) -> None:
        """Also raise the format if all understand a higher one."""
        super().tick_primary()
        is_busy = self.suspended or self.holding or self.is_changing or self.swamped
        if not self.leading or is_busy or self.commit_lsn < self.noop_lsn:
            return
        others = [self._format_of.get(member, 0) for member in self.members if member != self.id]
        common = min([self.machine.format_max, *others])
        if common > max(self.state_format, self.asked_format):
            self.asked_format = common
            self.add(Kind.RAISE, Body(argv=(b"%d" % common,)))
