"""Linearizable reads, confirmed by a quorum, and a primary that has lost its quorum.

No entry is logged for a read, and there is no lease.

Invariants:
1. A batch of reads is answered only after a quorum has confirmed this view, later than the last of
   them arrived. A retry has its own nonce and its own batch, of the reads that came meanwhile. An
   answer confirms the batch of its nonce and the batches before it, never a later one. So an
   answer that takes longer than a retry still counts: slow links are slow, not cut.
2. Nothing is read before the first entry of the primary's own view is committed, nor once the
   entry that ends the epoch is in its log.
3. A suspended primary takes no requests, answers no reads and sends no heartbeat. It goes on when
   a quorum answers a new check in the same view, and never once a member is in a higher view.
   Members that fetch missing entries keep it from being suspended, and count for nothing else.
4. A stale read is answered from committed state that is no older than what the client has seen.

Elsewhere: which view a suspended primary proposes (`view_change`).

Source: Liskov and Cowling 2012, section 6.3; V2R2, "Reads".
"""

from __future__ import annotations

from math import inf
from typing import Final, NamedTuple, TypeAlias

from millstream.vsr.core.client_table import TIME_OUT_MS, Past
from millstream.vsr.core.configuration import generation
from millstream.vsr.core.effects import Code, Read, Request, Resume
from millstream.vsr.core.messages import (
    Envelope,
    QuorumCheck,
    QuorumCheckOk,
)
from millstream.vsr.core.replica.execution import Execution
from millstream.vsr.core.replica.member import ReplicaState, Status
from millstream.vsr.core.replica.normal_case import NormalCase
from millstream.vsr.core.replica.repair import AGAIN_MS_MAX
from millstream.vsr.core.replica.upcalls import Upcalls
from millstream.vsr.core.tuning import HEARTBEAT_MS

__all__ = [
    "CHECKS_MAX",
    "FETCHING_MS_MAX",
    "QUORUM_BEATS",
    "QUORUM_MS",
    "READS_MAX",
    "RECHECK_MS",
    "STALE_WAIT_MS",
    "Asked",
    "Reads",
]

READS_MAX: Final = 10_000
"""Most reads that wait for a check. Beyond that they are refused."""
RECHECK_MS: Final = 2 * HEARTBEAT_MS
"""After this time without an answer another check begins. Earlier ones may still be answered."""
CHECKS_MAX: Final = 16
"""Most checks under way. Beyond that the oldest one's reads wait for the answers to the next."""
QUORUM_BEATS: Final = 2
QUORUM_MS: Final = 400
"""A primary suspends itself if no quorum has answered for this time and `QUORUM_BEATS` heartbeats.
"""
FETCHING_MS_MAX: Final = 5000.0
"""Longest time after a quorum's answer: later another member might lead and commit."""


_SERVING: Final = (Status.NORMAL, Status.GAP)
STALE_WAIT_MS: Final = 1000.0
"""How long a member may take to reach the state that a client has seen elsewhere."""
_LOST: Final = (
    "a client has seen entries that the only member of the group does not have: the directory of "
    "the member was set back to an older copy, or the client means another group"
)
_LOST_BY_FORK: Final = (
    "a client has seen entries that were lost when the group was forced to go on, or restored"
)


Asked: TypeAlias = Read | Resume | Request
"""What a quorum is asked for, and the reads that wait for it."""


class _Check(NamedTuple):
    nonce: int
    since_ms: float
    answered: set[bytes]
    batch: list[Asked]


class Reads:
    """Takes reads, QuorumCheck, QuorumCheckOk, and watches the quorum."""

    def __init__(
        self, state: ReplicaState, up: Upcalls, execution: Execution, normal: NormalCase
    ) -> None:
        self.state, self.up, self.execution, self.normal = state, up, execution, normal
        self._is_asked = False
        """Whether something was to be read in this step."""
        self._round = self._ticks = 0
        self._stale: list[tuple[float, Read]] = []
        self.begin()

    def begin(self) -> None:
        """Begin without reads, as if everybody had answered just now."""
        state = self.state
        self._reads: list[Asked] = []
        self._resumes: list[tuple[int, Resume]] = []
        self._checks: list[_Check] = []
        self._answered_ms = dict.fromkeys(state.members, state.now_ms)
        self._fetching_ms: dict[bytes, float] = {}
        self._had_quorum_ms, state.is_short = state.now_ms, False

    @property
    def reads_waiting(self) -> int:
        """How many reads are not answered."""
        under_way = sum(len(check.batch) for check in self._checks)
        return len(self._reads) + under_way + len(self._resumes) + len(self._stale)

    def on_read(self, read: Asked) -> None:
        """Answer a read once its result is known to be current."""
        state = self.state
        if isinstance(read, Read) and read.seen is not None:
            return self._on_stale_read(read)
        if not state.leading:
            return state.reply(read.ticket, Code.NOTPRIMARY)
        if state.suspended:
            return state.reply(read.ticket, Code.NOQUORUM)
        if self.reads_waiting >= READS_MAX:
            return state.reply(read.ticket, Code.BUSY)
        if isinstance(read, Resume) and state.commit_lsn < state.log.op_lsn:
            self._resumes.append((state.log.op_lsn, read))
            return None
        self._reads.append(read)
        self._is_asked = True
        return None

    def end_step(self) -> None:
        """Begin to check for the reads of one step, all at once."""
        if self._is_asked:
            self._is_asked = False
            if self.state.leading and not self.state.suspended and not self._checks:
                self._quorum_check()

    @property
    def _may_read(self) -> bool:
        state = self.state
        return not state.suspended and state.commit_lsn >= state.noop_lsn and not state.closing

    def _quorum_check(self) -> None:
        """Close the batch and ask. Earlier questions may still be answered."""
        state = self.state
        batch: list[Asked] = []
        if len(self._checks) >= CHECKS_MAX:
            oldest = self._checks.pop(0)
            self._checks[0].batch[:0] = oldest.batch
        if self._may_read:
            batch, self._reads = self._reads, []
        check = _Check(self.next_nonce(), state.now_ms, {state.id}, batch)
        self._checks.append(check)
        state.broadcast(QuorumCheck(check.nonce))
        self._finish_checks()

    def next_nonce(self) -> int:
        """Return a number that this process of this member never used."""
        self._round += 1
        return (self.state.incarnation & 0xFFFFFF) << 40 | self._round

    def on_quorum_check(self, envelope: Envelope, check: QuorumCheck) -> None:
        """Confirm that this member is in the view of the primary, if it is."""
        state = self.state
        if state.status is Status.NORMAL and envelope.view == state.view:
            state.send(envelope.sender, QuorumCheckOk(check.nonce))

    def on_quorum_check_ok(self, envelope: Envelope, ok: QuorumCheckOk) -> None:
        """Count an answer."""
        if not self.state.leading or envelope.view != self.state.view:
            return
        nonces = [check.nonce for check in self._checks]
        if ok.nonce not in nonces:
            return
        self.up.heard_from(envelope.sender)
        for check in self._checks[: nonces.index(ok.nonce) + 1]:
            check.answered.add(envelope.sender)
        self._finish_checks()

    def _finish_checks(self) -> None:
        """Answer the reads that a quorum has confirmed. Earlier batches come first."""
        state = self.state
        done = [check for check in self._checks if len(check.answered) >= state.quorum]
        if not done:
            return
        self._checks = self._checks[len(done) :]
        if state.suspended and not state.deposed:
            state.suspended = False
            self.up.resumed()
        for check in done:
            for read in check.batch:
                self._answer(read)
        if self._reads and self._may_read and not self._checks:
            self._quorum_check()

    def _answer(self, read: Asked) -> None:
        state = self.state
        if state.suspended:
            state.reply(read.ticket, Code.NOQUORUM)
        elif isinstance(read, Resume):
            code, highest = state.table.know(read.instance, read.session, read.secret)
            told = b""
            if code is Code.OK:
                self.up.touch(read.session)
                told = b"%d %d" % (self.time_out_ms(read.session), highest)
            state.reply(read.ticket, code, told, state.commit_lsn)
        elif isinstance(read, Request):
            verdict = self.execution.judge(read.instance, read.session, read.csn)
            if verdict.past is Past.WAITING:
                state.reply(read.ticket, Code.OK, verdict.value, state.commit_lsn)
            else:
                self.normal.on_request(read)
        else:
            value = state.machine.read(read.body, read.session)
            state.reply(read.ticket, Code.OK, value, state.commit_lsn)

    def time_out_ms(self, session: int) -> int:
        """Return how long a session may be silent now. The session must exist.

        It is the time that is set for what the session holds, unless its client asked for less.
        """
        asked = self.state.table.time_out_ms(session)
        is_set = self.state.machine.silence_ms(session)
        if is_set is None:
            return asked
        return is_set if asked >= TIME_OUT_MS else min(asked, is_set)

    def _on_stale_read(self, read: Read) -> None:
        state = self.state
        if state.leading and len(state.members) == 1 and (read.seen or 0) > state.log.op_lsn:
            # Nobody else can have it, so it will never be here.
            why = _LOST_BY_FORK
            if generation(state.epoch) == 0:
                why = _LOST
                state.contradict(why)
            text = b"%d %b" % (state.log.op_lsn, why.encode())
            return state.reply(read.ticket, Code.HISTORY_LOST, text)
        if len(self._stale) >= READS_MAX:
            return self.state.reply(read.ticket, Code.BUSY)
        self._stale.append((self.state.now_ms + STALE_WAIT_MS, read))
        return self.answer_stale_reads()

    def answer_stale_reads(self) -> None:
        """Answer stale reads whose state is reached or never will be, or whose time is over."""
        state = self.state
        waiting = []
        for until_ms, read in self._stale:
            seen = read.seen or 0
            if state.has_state and state.status in _SERVING and state.commit_lsn >= seen:
                value = state.machine.read(read.body, read.session)
                state.reply(read.ticket, Code.OK, value, state.commit_lsn)
            elif state.is_outside:
                state.reply(read.ticket, Code.NOTPRIMARY)
            elif state.now_ms >= until_ms:
                state.reply(read.ticket, Code.BEHIND, lsn=state.commit_lsn)
            else:
                waiting.append((until_ms, read))
        self._stale = waiting

    def committed(self) -> None:
        """Begin with reads that waited for the first commit of the view."""
        state = self.state
        if self._stale:
            self.answer_stale_reads()
        if self._resumes:
            self._reads += [asked for lsn, asked in self._resumes if lsn <= state.commit_lsn]
            self._resumes = [item for item in self._resumes if item[0] > state.commit_lsn]
        if state.leading and self._reads and not self._checks and self._may_read:
            self._quorum_check()

    def refuse_reads(self, code: Code) -> None:
        """Answer all reads that they were not done."""
        for read in self.take_reads():
            self.state.reply(read.ticket, code)

    def take_reads(self) -> list[Asked]:
        """Return the reads that wait, and forget them."""
        reads = [read for check in self._checks for read in check.batch] + self._reads
        reads += [asked for _, asked in self._resumes]
        self._reads, self._checks, self._resumes = [], [], []
        return reads

    # ---- loss of the quorum

    @property
    def quorum_ms(self) -> float:
        """How long a primary goes on without a quorum's answer."""
        return QUORUM_BEATS * self.state.tuning.beat_ms + QUORUM_MS

    def heard_from(self, member: bytes) -> None:
        """Note that a member answered."""
        self._answered_ms[member] = self.state.now_ms

    def heard_at(self, member: bytes) -> float:
        """Return when a member answered last."""
        return self._answered_ms.get(member, -inf)

    def fetches(self, envelope: Envelope) -> None:
        """Note that a member of this view asks for what it lacks.

        So it is there, and hears this primary. It acknowledges nothing yet. If it did not count, a
        primary with a bare quorum would give up before the member has what it needs, and so would
        the next primary, for ever.
        """
        state = self.state
        if state.leading and (envelope.epoch, envelope.view) == (state.epoch, state.view):
            self._fetching_ms[envelope.sender] = state.now_ms

    def _hears_quorum(self) -> bool:
        """Whether a quorum answers, or did lately and is completed by members that fetch."""
        state = self.state
        now, fetched = state.now_ms, self._fetching_ms
        answers = {m for m in state.members if now - self.heard_at(m) <= self.quorum_ms}
        state.is_short = len(answers) < state.quorum
        if not state.is_short:
            self._had_quorum_ms = now
        elif now - self._had_quorum_ms <= FETCHING_MS_MAX:
            # Who asked for what it lacks asks again within this time.
            long_ms = self.quorum_ms + AGAIN_MS_MAX
            answers.update(m for m in state.members if now - fetched.get(m, -inf) < long_ms)
        return len(answers) >= state.quorum

    def suspend(self) -> None:
        """Take nothing more, and tell the waiting clients."""
        if not self.state.suspended:
            self.state.suspended = True
            self.refuse_reads(Code.NOQUORUM)
            self.execution.forget_clients()

    def tick_primary(self) -> None:
        """Send a sign of life, or ask for another view if there is no quorum."""
        state = self.state
        self._ticks += 1
        is_beat = self._ticks % state.tuning.ticks_per_beat == 0
        self.up.heard_from(state.id)
        state.clocks.hear(state.id, state.wall_ms, state.now_ms)
        state.clocks.compare(state.members)
        if not self._hears_quorum():
            self.up.suspend()
        if state.suspended:
            self.up.propose()
        elif is_beat:
            self.normal.remind()
        checks = self._checks
        is_due = is_beat or state.suspended or checks
        is_early = checks and state.now_ms - checks[-1].since_ms < RECHECK_MS
        if state.leading and is_due and not is_early:
            self._quorum_check()
