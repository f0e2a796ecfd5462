"""Which process of a node counts. An older or copied directory is refused.

The promises of a node are in its directory. An older copy lacks some of them, and must not take
part. Two processes with one id must not, either. Other nodes store the last process of each node
by its incarnation, durably.

Invariants:
1. A process that is earlier than the known one, or a different one after equally many starts, is
   refused: its connections are closed, so none of its messages counts.
2. A later process at another address is accepted once the known one was asked at its own address
   and has been silent for `PROBE_MS`: the directory was moved, not copied.
3. A refused node is told why. It closes its groups and stores that durably: it never takes part
   again. The accepted process is told of it if it lives elsewhere, and continues.

A claim to be a node at another address ends as `Verdict` says:

    waits -> outdated   the node is known to be another process by now, or has gone
          -> refused    the known process answered at its own address
          -> believed   the known process was silent for `PROBE_MS`

Elsewhere: the numbers (`boot_stamps`), closing connections (the shell), pings (`heartbeats`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from millstream.coordination.core.pool.boot_stamps import Kin, is_same_start, kin_of, starts
from millstream.coordination.core.pool.continuations import Continuations
from millstream.coordination.core.pool.effects import CloseGroups, KeepRefusal, Marked, Warn
from millstream.coordination.core.pool.heartbeats import Heartbeats
from millstream.coordination.core.pool.messages import (
    Address,
    NodeInfo,
    PoolEnvelope,
    Refused,
)
from millstream.coordination.core.pool.state import PoolState

__all__ = ["IDLE", "MEND", "PROBE_MS", "Incarnations", "RefusedProcess"]

PROBE_MS: Final = 2000
"""How long a node's old address is asked before a new one is believed."""
_LATE_MS: Final = 500
"""What was under way when a process ended may still come."""
IDLE: Final = "this node takes part in nothing any more"
MEND: Final = (
    "stop this node, move its coord directory aside, start it with --join as a new node, and let "
    "it take the old one's place with ADMIN GROUP REPLACE"
)
"""What is to be done about a directory that is refused."""


class Verdict(Enum):
    """What becomes of a claim to be a node at another address; only `WAITS` has a next one."""

    WAITS = auto()
    OUTDATED = auto()
    REFUSED = auto()
    BELIEVED = auto()


@dataclass(slots=True)
class _Claim:
    """A later process that says to be a node at another address than the one that is known."""

    info: NodeInfo
    since_ms: float


@dataclass(slots=True)
class RefusedProcess:
    """A process that is not taken for the node that it says to be."""

    incarnation: int
    address: Address | None
    """None: another node refused it, and `reason` says where it is."""
    reason: str
    heard_ms: float


class Incarnations:
    """Decides which process of each node counts, this node included."""

    def __init__(
        self, state: PoolState, continuations: Continuations, heartbeats: Heartbeats
    ) -> None:
        self.state = state
        self._continuations = continuations
        self._heartbeats = heartbeats
        self.own_refusal = ""
        """Why this node takes part in nothing; empty: it does."""
        self.refused: dict[bytes, RefusedProcess] = {}
        """The process that was last refused, by node; of this node: another one with its id."""
        self._claims: dict[bytes, _Claim] = {}
        self._alive_ms: dict[bytes, float] = {}
        """When the process that is known of a node spoke last."""
        self._since_ms: dict[bytes, float] = {}
        """Since when it is the one that is known, if another was before."""

    # ---- others

    def note_alive(self, envelope: PoolEnvelope) -> None:
        """Note that a process speaks."""
        known = self.state.tables.node(envelope.sender)
        if known is not None and kin_of(known.incarnation, envelope.incarnation) is Kin.SAME:
            self._alive_ms[envelope.sender] = self.state.now_ms

    def refusal_of_node(self, info: NodeInfo) -> str:
        """Return why a process is not listened to; empty: it is, or it is not known here."""
        known = self.state.tables.node(info.node_id)
        if known is None or info.node_id == self.state.id:
            return ""
        if self._is_refused(info):
            return self.refused[info.node_id].reason
        kin = kin_of(known.incarnation, info.incarnation)
        if kin is Kin.EARLIER:
            return (
                f"others know of start {starts(known.incarnation)} of this node, and of more than "
                f"its directory, now at start {starts(info.incarnation)}, knows: it was set back "
                "to an older copy, or copied"
            )
        if kin is Kin.OTHER:
            return (
                f"others know of another start number {starts(info.incarnation)} of this node, at "
                f"{known.peer.text}: its directory was set back to an older copy, or copied"
            )
        if kin is Kin.LATER and info.peer != known.peer and known.peer.port:
            return f"whether it has left {known.peer.text} is not known yet"
        return ""

    def note_node(self, info: NodeInfo) -> None:
        """Take what a node said of itself, if it is the process that counts, or a later one."""
        known = self.state.tables.node(info.node_id)
        if info.node_id == self.state.id:
            self._note_own(info)
            return
        if known is None or not (reason := self.refusal_of_node(info)):
            if known is not None and starts(known.incarnation) != starts(info.incarnation):
                self._believe(info)
            self.state.record_node(info)
            return
        kin = kin_of(known.incarnation, info.incarnation)
        if kin is Kin.OTHER:
            self.refuse(info, reason)
        if kin is not Kin.LATER or self._is_refused(info):
            return
        claim = self._claims.get(info.node_id)
        if claim is not None and is_same_start(claim.info.incarnation, info.incarnation):
            claim.info = max(claim.info, info, key=lambda said: said.age)
        elif claim is None or kin_of(claim.info.incarnation, info.incarnation) is Kin.LATER:
            self._claims[info.node_id] = _Claim(info, self.state.now_ms)
            self._ask_old_address(known)

    def _is_refused(self, info: NodeInfo) -> bool:
        refused = self.refused.get(info.node_id)
        return refused is not None and refused.incarnation == info.incarnation

    def hear_node(self, info: NodeInfo, *, is_late: bool) -> bool:
        """Take what a process says of itself; return whether it counts.

        `is_late`: it may have been under way for long; what greets on a connection is not.
        """
        known, reason = self.state.tables.node(info.node_id), self.refusal_of_node(info)
        self.note_node(info)
        if known is None or not reason:
            return True
        since_ms = self._since_ms.get(info.node_id, self.state.now_ms)
        is_over = is_late and info.peer == known.peer and self.state.now_ms - since_ms <= PROBE_MS
        kin = kin_of(known.incarnation, info.incarnation)
        if self._is_refused(info) or (kin is Kin.EARLIER and not is_over):
            self.refuse(info, reason)
        return False

    def refuse(self, info: NodeInfo, reason: str) -> None:
        """Tell a process, and the operator of this node, that it is refused."""
        known = self.refused.get(info.node_id)
        if known is None or known.incarnation != info.incarnation:
            self.state.effects.append(Warn(
                f"a process at {info.peer.text} that claims to be node {info.node_id.hex()} is "
                f"refused: {reason}"
            ))  # fmt: skip
        self.refused[info.node_id] = RefusedProcess(
            info.incarnation, info.peer, reason, self.state.now_ms
        )
        self.state.say_to(info.node_id, info.peer, Refused(info.incarnation, reason))
        accepted = self.state.tables.node(info.node_id)
        if accepted is not None and accepted.peer.port and accepted.peer != info.peer:
            told = Refused(info.incarnation, f"at {info.peer.text}: {reason}")
            self.state.say_to(info.node_id, accepted.peer, told)

    def tick(self) -> None:
        """Believe who claims to be a node at another address, or refuse it."""
        for node_id, claim in sorted(self._claims.items()):
            known = self.state.tables.node(node_id)
            verdict = self._verdict(known, claim)
            if verdict is Verdict.WAITS:
                assert known is not None
                self._ask_old_address(known)
                continue
            del self._claims[node_id]
            if verdict is Verdict.REFUSED:
                assert known is not None
                reason = f"the node lives at {known.peer.text}: its directory was copied"
                self.refuse(claim.info, reason)
            elif verdict is Verdict.BELIEVED:
                self._believe(claim.info)
                self.state.record_node(claim.info)

    def _verdict(self, known: NodeInfo | None, claim: _Claim) -> Verdict:
        if known is None or kin_of(known.incarnation, claim.info.incarnation) is not Kin.LATER:
            return Verdict.OUTDATED
        spoke_ms = self._alive_ms.get(known.node_id, claim.since_ms)
        if spoke_ms > claim.since_ms + _LATE_MS:
            return Verdict.REFUSED
        is_silent = self.state.now_ms - claim.since_ms >= PROBE_MS
        return Verdict.BELIEVED if is_silent else Verdict.WAITS

    def _believe(self, info: NodeInfo) -> None:
        """Take a process for the one that counts from now on."""
        self._since_ms[info.node_id] = self.state.now_ms
        self.refused.pop(info.node_id, None)

    def _ask_old_address(self, known: NodeInfo) -> None:
        self.state.say_to(known.node_id, known.peer, self._heartbeats.message())

    # ---- this node

    def on_marked(self, marked: Marked) -> None:
        """Note that this node's mark since its last number is durable here."""
        if not self.own_refusal and not self.state.tables.is_removed:
            self.state.tables.say_of_me(self.state.me._replace(incarnation=marked.incarnation))
            self.state.is_changed = True

    def on_refused(self, _: PoolEnvelope, refused: Refused) -> None:
        """Stop taking part if it is this process that is refused, else note the other one."""
        if refused.incarnation == self.state.me.incarnation:
            self.be_refused(refused.reason)
        elif not is_same_start(refused.incarnation, self.state.me.incarnation):
            known = self.refused.get(self.state.id)
            if known is None or known.incarnation != refused.incarnation:
                self.state.effects.append(Warn(
                    f"another process claims to be this node and is refused, {refused.reason}; "
                    "stop it: this one continues"
                ))  # fmt: skip
            self.refused[self.state.id] = RefusedProcess(
                refused.incarnation, None, refused.reason, self.state.now_ms
            )

    def _note_own(self, info: NodeInfo) -> None:
        """See that others know a process of this node that this directory knows nothing of."""
        if kin_of(self.state.me.incarnation, info.incarnation) in (Kin.LATER, Kin.OTHER):
            self.be_refused(
                f"others know of start {starts(info.incarnation)} of this node at "
                f"{info.peer.text}, this is start {starts(self.state.me.incarnation)}: its "
                "directory was set back to an older copy, or copied"
            )

    def be_refused(self, reason: str) -> None:
        """Close all groups for good: what this directory has promised is not known."""
        if self.own_refusal:
            return
        self.own_refusal = reason
        self.state.replicas.clear()
        self.state.effects.append(CloseGroups())
        self.state.effects.append(KeepRefusal(self._continuations.next_number(), reason))
        self.state.effects.append(Warn(f"{IDLE}: {reason}; {MEND}"))

    def check_invariants(self) -> None:
        """Assert what is true after every event."""
        other = self.refused.get(self.state.id)
        is_other = other is None or other.incarnation != self.state.me.incarnation
        assert is_other, "the node refuses itself as another one"
        for node_id, claim in self._claims.items():
            assert claim.info.node_id == node_id != self.state.id, "a claim to be this node"
            assert claim.since_ms <= self.state.now_ms, "a claim from the future"
