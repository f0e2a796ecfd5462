"""Decides at a node whether an order may be carried out, and what that means.

    ruling = judge_order(order, known)
    for step in ruling.steps: ...        # in this order; then everything of them is made durable
    reply(ruling.reply or how the copy stands now)

Checks, in this order: cluster, node, in step, token, record. An order passes all of them or does
nothing at all, not even raise the token.

Invariants:
1. A node that is out of step obeys nothing: it has not read the token and maps since it started.
2. The token never falls. It guards against earlier orchestrators; the key of the record guards
   against late orders of the same one.
3. A record replaces an older one only. Two contents of one key are damage.
4. A copy that the own record places is not removed.
5. An order to activate counts for the session that the node had when it was given. A node without
   a session is not asked to promise, so another copy may be active when it is back.
6. What a reply tells is durable: adopted records, promises, state and branch of the copy.

Elsewhere: the orders (`cluster.core.orders`), what an active copy may do without any order
(`model.serving_rights`).
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from millstream.cluster.core.orders import Order, Place, Reply
from millstream.cluster.core.promotion import Level
from millstream.cluster.core.reports import CopyReport, PartReport, new_copy
from millstream.errors import CorruptionError
from millstream.model.cluster_maps import DataRecord, Floor, IndexRecord
from millstream.model.partitions import PartitionState
from millstream.vsr.core.versions import Version

__all__ = [
    "INDEX_ORDERS",
    "Activate",
    "Admit",
    "Adopt",
    "AdoptIndex",
    "Follow",
    "Freeze",
    "Known",
    "Promise",
    "RaiseToken",
    "Remove",
    "Ruling",
    "Step",
    "StopPart",
    "TakeOver",
    "is_news",
    "judge_order",
    "stopped_at",
]

_ACTIVE: Final = PartitionState.ACTIVE
_MAY_TAKE: Final = (PartitionState.REPLICA, PartitionState.PENDING)
"""A copy is pending while it is taking over, or where an earlier attempt could not be undone."""
INDEX_ORDERS: Final = ("index", "freeze", "stop")


class RaiseToken(NamedTuple):
    """Obey no orchestrator with a smaller one."""

    token: Version


class Adopt(NamedTuple):
    """Make the record durable; make a replica if it places this node and there is no copy."""

    place: Place
    record: DataRecord


class AdoptIndex(NamedTuple):
    """Make the index record durable; make, activate or withdraw the part."""

    place: Place
    record: IndexRecord


class Promise(NamedTuple):
    """Set `last_branch`; end the streams of the copy; stand down to a replica if it is active."""

    place: Place
    branch: int
    stands_down: bool
    ends_streams: bool


class Activate(NamedTuple):
    """Begin the branch at the end of the copy and serve, by the rows of its record."""

    place: Place
    branch: int
    kept: tuple[Level, ...]


class Follow(NamedTuple):
    """Make a dead copy a replica."""

    place: Place


class TakeOver(NamedTuple):
    """Ask the active copy for the partition."""

    place: Place


class Remove(NamedTuple):
    """Remove the copy, and list what it had that the copy which serves has not."""

    place: Place


class Admit(NamedTuple):
    """Serve by the lease."""


class Freeze(NamedTuple):
    """Stop indexing, durably; go on answering."""

    place: Place


class StopPart(NamedTuple):
    """Stop indexing and answering, durably."""

    place: Place


Step = (
    RaiseToken
    | Adopt
    | AdoptIndex
    | Promise
    | Activate
    | Follow
    | TakeOver
    | Remove
    | Admit
    | Freeze
    | StopPart
)


class Known(NamedTuple):
    """What the node knows as it gets the order."""

    cluster: str
    node: str
    boots: int
    """Number of its session; 0: out of step."""
    token: Version
    record: DataRecord | None
    """The adopted one of the order's partition."""
    copy: CopyReport | None = None
    """The copy of it; None: it has none."""
    index_record: IndexRecord | None = None
    part: PartReport | None = None


class Ruling(NamedTuple):
    """What to do, in this order."""

    steps: tuple[Step, ...] = ()
    code: Literal["is", "promised", "stopped"] = "is"
    refusal: Reply | None = None
    """If set, nothing is done."""


def judge_order(order: Order, known: Known) -> Ruling:
    """Return what an order means to a node.

    Raises:
        CorruptionError: `other_map`: it has another content of a record that the node knows.
    """
    refusal = _refusal(order, known)
    if refusal is not None:
        return Ruling(refusal=refusal)
    steps: list[Step] = []
    if order.token > known.token:
        steps.append(RaiseToken(order.token))
    if order.kind == "report":
        return Ruling(tuple(steps))
    if order.kind in INDEX_ORDERS:
        return _index_ruling(order, known, steps)
    if order.kind == "admit":
        is_same = order.boots == known.boots
        return Ruling((*steps, Admit()) if is_same else tuple(steps))
    record = order.record
    assert record is not None, f"{order.kind} without a record"
    is_older = known.record is not None and record.at < known.record.at
    if is_older:
        return Ruling(refusal=Reply("behind", record=known.record))
    if is_news(record, known.record):
        steps.append(Adopt(order.place, record))
    copy = known.copy
    if copy is None and known.node in record.placed:
        copy = new_copy(order.place.partition, record)  # adopting the record has made it
    if order.kind == "adopt" or copy is None:
        return Ruling(tuple(steps))
    return _copy_ruling(order, known.node, known.boots, record, copy, steps)


def is_news(record: DataRecord | IndexRecord, known: DataRecord | IndexRecord | None) -> bool:
    """Return whether a record has to be adopted, from whomever it comes.

    Raises:
        CorruptionError: `other_map`: it has the key of the known one, and another content.
    """
    if known is None or record.at > known.at:
        return True
    if record.at == known.at and record != known:
        raise CorruptionError(
            f"two records of key {tuple(record.at)} differ: {record} and {known}: "
            "remove the node from its cluster, and have it join anew with an empty directory",
            code="other_map",
        )
    return False


def _refusal(order: Order, known: Known) -> Reply | None:
    if order.cluster != known.cluster:
        return Reply("other_cluster")
    if order.to != known.node:
        return Reply("other_node")
    if not known.boots:
        return Reply("out_of_step")
    if order.token < known.token:
        return Reply("deposed", token=known.token)
    return None


def _copy_ruling(
    order: Order, node: str, boots: int, record: DataRecord, copy: CopyReport, steps: list[Step]
) -> Ruling:
    place, standing = order.place, copy.standing
    is_active = standing.state is _ACTIVE
    code: Literal["is", "promised"] = "is"
    if order.kind == "promise":
        if order.branch > standing.last_branch:
            steps.append(Promise(place, order.branch, is_active, ends_streams=True))
            code = "promised"
    elif order.kind == "activate":
        if order.boots == boots and _may_activate(order, copy):
            steps.append(Activate(place, order.branch, order.kept))
    elif order.kind == "fence":
        if order.branch > standing.last_branch:
            stands_down = is_active and standing.branch < order.branch
            steps.append(Promise(place, order.branch, stands_down, ends_streams=stands_down))
        if standing.state is PartitionState.DEAD:
            steps.append(Follow(place))
    elif order.kind == "take_over":
        if standing.state in _MAY_TAKE:
            steps.append(TakeOver(place))
    elif order.kind == "remove" and node not in record.placed:
        steps.append(Remove(place))
    return Ruling(tuple(steps), code)


def _may_activate(order: Order, copy: CopyReport) -> bool:
    """It promised exactly this branch, has not begun it, and has all that is required."""
    standing = copy.standing
    return (
        standing.last_branch == order.branch > standing.branch
        and standing.complete_end >= order.end
    )


def _index_ruling(order: Order, known: Known, steps: list[Step]) -> Ruling:
    if order.kind == "index":
        record = order.index
        assert record is not None, "no index record"
        if known.index_record is not None and record.at < known.index_record.at:
            return Ruling(refusal=Reply("behind"))
        if is_news(record, known.index_record):
            steps.append(AdoptIndex(order.place, record))
        return Ruling(tuple(steps))
    if known.part is None or known.index_record is None or known.index_record.at != order.key:
        return Ruling(refusal=Reply("refused"))
    step: Step = Freeze(order.place) if order.kind == "freeze" else StopPart(order.place)
    return Ruling((*steps, step), "stopped" if order.kind == "stop" else "is")


def stopped_at(part: PartReport, record: IndexRecord) -> Floor:
    """Return where a part stops: what it never reached it never showed, so its floor stays."""
    return part.reached if part.has_floor else record.floor
