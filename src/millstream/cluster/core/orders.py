"""Orders of the orchestrator to nodes, one partition each, and the replies.

| kind | needs | asks the node to |
| --- | --- | --- |
| report | | tell everything: the reply is a `NodeReport` |
| adopt | record | adopt the record |
| promise | record, branch | follow no source, and acknowledge nothing, below the branch |
| activate | record, branch, end, kept, boots | serve in the branch that it promised |
| fence | record, branch | stand down if it is active in a lower branch; follow, if it is dead |
| take_over | record | take the partition over from the copy that serves |
| remove | record | remove its copy, if no record places it |
| admit | boots | serve by its lease, if that is still its session |
| index | index | adopt the index record |
| freeze, stop | key | stop indexing, or answering, if that is the key of its index record |

Invariants:
1. Every order may be lost, late, doubled and out of order. Carrying it out twice is carrying it
   out once.
2. An order names the whole record that it was made from. A node adopts that first, and refuses an
   order that is based on an older record than its own.

Elsewhere: what the node checks (`cluster.core.admission`).
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

from millstream.cluster.core.promotion import Level
from millstream.cluster.core.reports import CopyReport
from millstream.model.cluster_maps import NO_KEY, DataRecord, Floor, IndexRecord, MapKey
from millstream.vsr.core.versions import Version

__all__ = ["Order", "OrderKind", "Place", "Reply", "ReplyCode"]

OrderKind = Literal[
    "report", "adopt", "promise", "activate", "fence", "take_over", "remove", "admit", "index",
    "freeze", "stop",
]  # fmt: skip
ReplyCode = Literal[
    "is", "promised", "stopped", "other_cluster", "other_node", "out_of_step", "deposed", "behind",
    "refused",
]  # fmt: skip


class Place(NamedTuple):
    """A partition of a bucket."""

    bucket: str
    partition: int


class Order(msgspec.Struct, frozen=True):
    """See the table of the module for what a kind needs."""

    kind: OrderKind
    cluster: str
    to: str
    token: Version
    place: Place = Place("", 0)
    record: DataRecord | None = None
    branch: int = 0
    end: int = 0
    """The copy must have everything up to this seqno."""
    kept: tuple[Level, ...] = ()
    boots: int = 0
    index: IndexRecord | None = None
    key: MapKey = NO_KEY


class Reply(msgspec.Struct, frozen=True):
    """The reply to one order. `is`: it only reports the state of the copy."""

    code: ReplyCode
    copy: CopyReport | None = None
    branch: int = 0
    """The branch that was promised."""
    token: Version | None = None
    """The token of a newer orchestrator (`deposed`)."""
    record: DataRecord | None = None
    """The newer one (`behind`)."""
    floor: Floor | None = None
    """Where a part stopped (`stopped`)."""
