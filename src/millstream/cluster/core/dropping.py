"""Ends buckets that are being dropped: first nobody has any of them, then nobody knows them.

A bucket in state `dropping` is left out of all decisions, and of the maps that nodes get. So each
node removes what it has of it. Then the elements of the bucket are removed, and its name is free.

Invariants:
1. The name is free only once every node with a session has reported, in this step, that it has
   nothing of the bucket. A node without a session removes it before it is in step again.

Elsewhere: the request (`cluster.core.bucket_requests`).
"""

from __future__ import annotations

from millstream.cluster.core.elements import ClusterState
from millstream.cluster.core.reports import NodeReport
from millstream.cluster.core.step import Step
from millstream.cluster.core.writes import Txn, forget_bucket

__all__ = ["finish_drop"]


def finish_drop(step: Step, state: ClusterState) -> Txn | None:
    """Return the write that ends a drop; None: there is none to be ended now.

    Args:
        step: its state has no dropped buckets.
        state: as read, with them.
    """
    if not step.view.is_fresh:
        return None
    for uuid, bucket in sorted(state.buckets.items()):
        if bucket.state == "dropping":
            waited = [name for name in sorted(state.live) if _may_have(step, name, uuid)]
            if not waited:
                return forget_bucket(state, uuid)
            names = ", ".join(
                state.nodes[name].name if name in state.nodes else name for name in waited
            )
            step.note(f"bucket {bucket.name} is being dropped: {names} may still have some of it")
    return None


def _may_have(step: Step, name: str, uuid: str) -> bool:
    report = step.memory.nodes.get(name)
    return name not in step.view.answered or report is None or _has(report, uuid)


def _has(report: NodeReport, uuid: str) -> bool:
    copies = report.copies.get(uuid, {})
    return any(copy.is_there for copy in copies.values()) or bool(report.parts.get(uuid))
