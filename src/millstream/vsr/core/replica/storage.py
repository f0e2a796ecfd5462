"""What a member has on its disk: it starts from it, adds entries, and changes its hard state.

Invariants:
1. While a new hard state is on its way to the disk (`persist`), the member does nothing else: what
   it does next depends on it. Events wait (`Replica`).
2. A log gets another end together with the hard state that stands for it, in one durable step.
3. What is committed here is never cut, nor replaced by an older snapshot.

Elsewhere: its bytes and files (`journal`), snapshots on the disk (`snapshot_taking`).

Source: Liskov and Cowling 2012.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from millstream.vsr.core.effects import Append, Image, Install, InstallSnapshot, WriteHardState
from millstream.vsr.core.entries import Entry
from millstream.vsr.core.hard_state import HardState
from millstream.vsr.core.replica.execution import Execution
from millstream.vsr.core.replica.member import ReplicaState
from millstream.vsr.core.replica.repair import NewEnd
from millstream.vsr.core.replica.upcalls import Upcalls

__all__ = ["Storage"]


class Storage:
    """Starts from the disk, and asks for disk steps. Each step is reported by its number."""

    def __init__(self, state: ReplicaState, up: Upcalls, execution: Execution) -> None:
        self.state, self.up, self.execution = state, up, execution
        self.commit_hint = 0
        """What was committed before the restart, as far as the hard state says."""
        self.hinted_lsn = 0
        """The commit LSN in the hard state that was written last."""
        self._op = 0
        self._persist_op = 0
        self._then: Callable[[], None] | None = None

    # ---- starting

    def load(self, image: Image) -> None:
        """Take over what a restart found."""
        state = self.state
        (
            state.group_id, state.id, state.incarnation, state.view, state.last_normal,
            configuration, state.retired, hint,
        ) = image.hard_state  # fmt: skip
        self.state.belong_to(configuration)
        self.state.incarnation += 1
        promised = self.state.members and (self.state.epoch, self.state.view) > (0, 0)
        forgot = bool(promised and not self.state.configuration.journalled)
        covered_lsn = 0 if image.stable is None else image.stable.lsn
        self.state.lost = image.lost or forgot or image.base.lsn + len(image.log) < covered_lsn
        if not self.state.lost:
            self._load_log(image)
        self.commit_hint = min(hint, self.state.log.whole_lsn)
        if self.state.closing:
            self.commit_hint = min(self.commit_hint, self.state.log.op_lsn - 1)

    def _load_log(self, image: Image) -> None:
        state = self.state
        state.log.begin_at(image.base)
        for entry in image.log:
            if isinstance(entry, Entry):
                state.log.append(entry)
            else:
                state.log.append_hole(entry.header)
        if image.stable is not None:
            self.cover_holes(image.stable.lsn)
            self.up.take_state(image.stable, image.snapshot)

    def cover_holes(self, lsn: int) -> None:
        """Replace damaged entries up to the LSN of a snapshot by the snapshot."""
        state = self.state
        covered = [hole for hole in state.log.holes if hole <= lsn]
        state.log.drop_prefix(max(covered, default=state.log.base.lsn))

    # ---- writing

    def next_op(self) -> int:
        """Return the number of another disk step."""
        self._op += 1
        return self._op

    def write(self, entries: Iterable[Entry]) -> int:
        """Write entries to the end of the log; return the number that reports completion."""
        self._op += 1
        self.state.effects.append(Append(self._op, tuple(entries)))
        return self._op

    @property
    def hard_state(self) -> HardState:
        """What is to be durable of the state now."""
        state = self.state
        return HardState(
            state.group_id, state.id, state.incarnation, state.view, state.last_normal,
            state.configuration, state.retired,
            state.commit_lsn if state.configuration.journalled else 0,
        )  # fmt: skip

    def persist(self, then: Callable[[], None], end: NewEnd | None = None) -> None:
        """Make the hard state durable, with a new end of the log if any; then do `then`."""
        state = self.state
        assert self._then is None
        self._op += 1
        self._persist_op, self._then = self._op, then
        if end is not None:
            damaged = len(state.log.holes)
            self._change_log(end)
            state.repaired += damaged - len(state.log.holes)
        self.hinted_lsn = state.commit_lsn
        if end is None:
            state.effects.append(WriteHardState(self._op, self.hard_state))
        elif end.snapshot is None:
            state.effects.append(Install(self._op, end.keep_lsn, end.suffix, self.hard_state))
        else:
            new = InstallSnapshot(self._op, end.snapshot, end.suffix, self.hard_state)
            state.effects.append(new)

    def _change_log(self, end: NewEnd) -> None:
        state = self.state
        assert end.keep_lsn >= state.log.base.lsn
        self.execution.to_apply_lsn = min(self.execution.to_apply_lsn, end.keep_lsn)
        if end.snapshot is None:
            state.log.replace_above(end.keep_lsn, end.suffix)
        else:
            found = end.snapshot.id
            assert found.lsn >= state.commit_lsn, "a snapshot older than what is applied"
            state.log.begin_at(found.link)
            state.log.replace_above(found.lsn, end.suffix)
            self.up.take_state(found, end.snapshot)
        assert state.commit_lsn <= state.log.op_lsn

    def write_hint(self) -> int:
        """Write the hard state for its commit hint alone; return the number that reports it."""
        self._op += 1
        self.hinted_lsn = self.state.commit_lsn
        self.state.effects.append(WriteHardState(self._op, self.hard_state))
        return self._op

    @property
    def is_persisting(self) -> bool:
        """Whether a hard state is on its way to the disk."""
        return self._then is not None

    def persisted(self, op: int) -> bool:
        """Go on if this is what `persist` waits for."""
        if self._then is None or op != self._persist_op:
            return False
        then, self._then = self._then, None
        then()
        return True
