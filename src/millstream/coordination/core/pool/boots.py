"""A node's directory that was set back, or copied: told from the right one, and refused.

What a node has promised is in its directory. An older copy of it does not know all of that, and
must take part in nothing; nor may two of one id. Others know each node's last process by its
number (`boots`), durably.

Invariants:
1. An earlier process than the one that is known, or another one after as many starts, is refused:
   its connections are closed, so nothing that it says counts.
2. A later one at another address is believed once the one that is known was asked at its own
   address, and has been silent for `PROBE_MS`: a directory that was moved, not copied.
3. A node that is refused is told why. It closes its groups and keeps that durably: it takes no
   part any more, whatever else it hears. The right one is not disturbed.

Elsewhere: the numbers (`boots`), closing connections (the shell), who is told (`pool_gossip`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from millstream.coordination.core.pool.boot_stamps import Kin, kin_of, starts
from millstream.coordination.core.pool.effects import CloseGroups, KeepRefusal, Marked, Warn
from millstream.coordination.core.pool.messages import (
    Address,
    NodeInfo,
    PoolEnvelope,
    PoolPayload,
    Refused,
)
from millstream.coordination.core.pool.state import PoolState

__all__ = ["IDLE", "MEND", "PROBE_MS", "Boots", "Double"]

PROBE_MS: Final = 2000
"""So long a node's old address is asked before it is believed to be at a new one."""
_LATE_MS: Final = 500
"""What was under way when a process ended may still come."""
IDLE: Final = "this node takes part in nothing any more"
MEND: Final = (
    "stop this node, move its coord directory aside, start it with --join as a new node, and let "
    "it take the old one's place with ADMIN GROUP REPLACE"
)
"""What is to be done about a directory that is refused."""


@dataclass(slots=True)
class _Claim:
    """A process that says to be a node at another address."""

    info: NodeInfo
    since_ms: float


@dataclass(slots=True)
class Double:
    """A process that is refused as a node."""

    incarnation: int
    address: Address
    reason: str
    heard_ms: float


class Boots(PoolState):
    """Refused; and which process of a node counts."""

    def __init__(self, chance: Callable[[], float]) -> None:
        super().__init__(chance)
        self.own_refusal = ""
        """Why this node takes part in nothing; empty: it does."""
        self.doubles: dict[bytes, Double] = {}
        """Who was refused last, by node."""
        self._claims: dict[bytes, _Claim] = {}
        self._alive_ms: dict[bytes, float] = {}
        """When the process that is known of a node spoke last."""
        self._since_ms: dict[bytes, float] = {}
        """Since when it is the one that is known, if another was before."""

    # ---- others

    def note_alive(self, envelope: PoolEnvelope) -> None:
        """Note that a process speaks."""
        known = self.tables.node(envelope.sender)
        if known is not None and kin_of(known.incarnation, envelope.incarnation) is Kin.SAME:
            self._alive_ms[envelope.sender] = self.now_ms

    def refusal_of_node(self, info: NodeInfo) -> str:
        """Return why a process is not listened to; empty: it is, or it is not known here."""
        known = self.tables.node(info.node_id)
        if known is None or info.node_id == self.id:
            return ""
        if self._is_refused(info):
            return self.doubles[info.node_id].reason
        kin = kin_of(known.incarnation, info.incarnation)
        if kin is Kin.EARLIER:
            return (
                f"others know of start {starts(known.incarnation)} of this node, and of more than "
                f"its directory, now at start {starts(info.incarnation)}, knows: it was set back "
                "to an older copy"
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
        known = self.tables.node(info.node_id)
        if info.node_id == self.id:
            return self._note_own(info)
        if known is None or not (reason := self.refusal_of_node(info)):
            if known is not None and starts(known.incarnation) != starts(info.incarnation):
                self._believe(info)
            return super().note_node(info)
        kin = kin_of(known.incarnation, info.incarnation)
        if kin is Kin.OTHER:
            self.refuse(info, reason)
        if kin is not Kin.LATER or self._is_refused(info):
            return None
        claim = self._claims.get(info.node_id)
        if claim is None or kin_of(claim.info.incarnation, info.incarnation) is Kin.LATER:
            self._claims[info.node_id] = _Claim(info, self.now_ms)
            self._ask_old_address(known)
        elif claim.info.age < info.age:
            claim.info = info
        return None

    def _is_refused(self, info: NodeInfo) -> bool:
        double = self.doubles.get(info.node_id)
        return double is not None and double.incarnation == info.incarnation

    def hear_node(self, info: NodeInfo, *, is_late: bool) -> bool:
        """Take what a process says of itself; return whether it counts.

        `is_late`: it may have been under way for long; what greets on a connection is not.
        """
        known, reason = self.tables.node(info.node_id), self.refusal_of_node(info)
        self.note_node(info)
        if known is None or not reason:
            return True
        since_ms = self._since_ms.get(info.node_id, self.now_ms)
        is_over = is_late and info.peer == known.peer and self.now_ms - since_ms <= PROBE_MS
        kin = kin_of(known.incarnation, info.incarnation)
        if self._is_refused(info) or (kin is Kin.EARLIER and not is_over):
            self.refuse(info, reason)
        return False

    def refuse(self, info: NodeInfo, reason: str) -> None:
        """Tell a process that it is refused, and whoever looks after this node."""
        known = self.doubles.get(info.node_id)
        if known is None or known.incarnation != info.incarnation:
            self.effects.append(Warn(
                f"a process at {info.peer.text} that says to be node {info.node_id.hex()} is "
                f"refused: {reason}"
            ))  # fmt: skip
        self.doubles[info.node_id] = Double(info.incarnation, info.peer, reason, self.now_ms)
        self.say_to(info.node_id, info.peer, Refused(info.incarnation, reason))

    def tick_boots(self) -> None:
        """Believe who claims to be a node at another address, or refuse it."""
        for node_id, claim in sorted(self._claims.items()):
            known = self.tables.node(node_id)
            if known is None or kin_of(known.incarnation, claim.info.incarnation) is not Kin.LATER:
                del self._claims[node_id]
            elif self._alive_ms.get(node_id, claim.since_ms) > claim.since_ms + _LATE_MS:
                del self._claims[node_id]
                reason = f"the node lives at {known.peer.text}: its directory was copied"
                self.refuse(claim.info, reason)
            elif self.now_ms - claim.since_ms >= PROBE_MS:
                del self._claims[node_id]
                self._believe(claim.info)
                super().note_node(claim.info)
            else:
                self._ask_old_address(known)

    def _believe(self, info: NodeInfo) -> None:
        """Take a process for the one that counts from now on."""
        self._since_ms[info.node_id] = self.now_ms
        self.doubles.pop(info.node_id, None)

    def _ask_old_address(self, known: NodeInfo) -> None:
        self.say_to(known.node_id, known.peer, self.question())

    def question(self) -> PoolPayload:
        """Return what is answered by every node that lives."""
        raise AssertionError("gossip has it")

    # ---- this node

    def on_marked(self, marked: Marked) -> None:
        """Say that this node has worked since its last number: that is durable here."""
        if not self.own_refusal and not self.tables.is_removed:
            self.tables.say_of_me(self.me._replace(incarnation=marked.incarnation))
            self.is_changed = True

    def on_refused(self, _: PoolEnvelope, refused: Refused) -> None:
        """Take part in nothing any more, if it is this process that is meant."""
        if refused.incarnation == self.me.incarnation:
            self.be_refused(refused.reason)

    def _note_own(self, info: NodeInfo) -> None:
        """See that others know a process of this node that this directory knows nothing of."""
        if kin_of(self.me.incarnation, info.incarnation) in (Kin.LATER, Kin.OTHER):
            self.be_refused(
                f"others know of start {starts(info.incarnation)} of this node at "
                f"{info.peer.text}, this is start {starts(self.me.incarnation)}: its directory "
                "was set back to an older copy, or copied"
            )

    def be_refused(self, reason: str) -> None:
        """Close all groups for good: what this directory has promised is not known."""
        if self.own_refusal:
            return
        self.own_refusal = reason
        self.states.clear()
        self.effects.append(CloseGroups())
        self.effects.append(KeepRefusal(self.next_number(lambda: None), reason))
        self.effects.append(Warn(f"{IDLE}: {reason}; {MEND}"))
